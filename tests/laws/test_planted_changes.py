"""Small facts that planted changes of other draws went against unnoticed (tests/mutate.py), a test each."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iosim.base.errors import InputError, _slips
from iosim.base.pointwise import pointwise
from iosim.catalog.libraries import resolve
from iosim.code.ptx_fold import ABOVE, BELOW, EQUAL, _until
from iosim.code.ptx_operations import count_bits, leading_zeros, logic
from iosim.code.ptx_values import number, shrunk, whole, wrapped
from iosim.code.ptx_words import uneven_name
from iosim.evidence.measure.fit import Point, error_of
from iosim.evidence.published.judge import _judged
from iosim.evidence.reproduce.chunk_schedules import ADAM_BYTES
from iosim.evidence.times.groups import Row
from iosim.evidence.validate.residuals import _compulsory_read
from iosim.hardware.profile import load_profile
from iosim.kernel.conditions import Conditions
from iosim.kernel.launch import SPILL, Chain
from iosim.prediction.predictor import planned, predict
from iosim.prediction.reuse import Reuse
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks import BlockMask
from iosim.readers.check_bits import with_check_bits
from iosim.readers.staged import _own_steps
from iosim.show.axes import apart
from iosim.studies.models.asked import _kind_with
from iosim.studies.models.layers import LayerKind
from iosim.studies.program.operators import Operator, Program
from iosim.studies.report.figures import kept


@pytest.mark.parametrize(
    ("first", "second", "slips"),
    [
        ("heads", "head", 1),
        ("heads", "haeds", 1),  # neighbours swapped
        ("seq", "sqe", 1),
        ("abcd", "acbd", 1),
        ("abab", "baba", 2),
        ("ab", "cd", 2),
        ("aab", "bba", 2),
        ("kitten", "sitting", 3),
        ("abcd", "bacc", 2),
        ("xaby", "xbcy", 2),
    ],
)
def test_slips_between_names(first: str, second: str, slips: int) -> None:
    assert _slips(first, second, 9) == slips


def test_slips_are_those_of_the_definition() -> None:
    """Every pair of words of three letters against the recursive definition, swaps of neighbours included."""

    def slips(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        least = min(slips(a[1:], b) + 1, slips(a, b[1:]) + 1, slips(a[1:], b[1:]) + (a[0] != b[0]))
        if len(a) > 1 and len(b) > 1 and a[0] == b[1] and a[1] == b[0]:
            least = min(least, slips(a[2:], b[2:]) + 1)
        return least

    words = ["".join(letters) for letters in itertools.product("abc", repeat=3)]
    assert all(_slips(a, b, 9) == slips(a, b) for a in words for b in words)


def test_a_function_is_taken_of_each_of_many() -> None:
    class Many:
        def pointwise(self, function: Any, numbers: tuple[Any, ...]) -> int:
            return sum(int(function(size, *numbers[1:])) for size in (1, 2, 3))

    double = pointwise(lambda n, more: 2 * n + more)
    assert double(4, 1) == 9
    assert double(Many(), 1) == 2 * 6 + 3  # type: ignore[arg-type]


@pytest.mark.parametrize("table", [0x00, 0x96, 0xE8, 0xCA, 0x3C, 0xFF])
def test_a_function_of_three_bits_by_its_table(table: int) -> None:
    a, b, c = 0b11110000, 0b11001100, 0b10101010
    (got,) = whole(logic(number(a), number(b), number(c), table)).ravel()
    bits = [(table >> ((a >> n & 1) * 4 + (b >> n & 1) * 2 + (c >> n & 1))) & 1 for n in range(8)]
    assert int(got) & 0xFF == sum(bit << n for n, bit in enumerate(bits))


def test_numbers_wrap_at_their_bits() -> None:
    assert [wrapped(n, 8) for n in (127, 128, 200, 256, 300, -129)] == [127, -128, -56, 0, 44, 127]


def test_values_are_kept_in_as_few_as_they_take() -> None:
    assert shrunk(np.array([[True, True], [True, True]])).shape == (1, 1)
    assert shrunk(np.array([[1, 2], [1, 2]])).shape == (1, 2)
    assert shrunk(np.array([[1, 1], [2, 2]])).shape == (2, 1)


def test_operations_of_two_factors_by_their_opcode() -> None:
    """A high half is a quotient and a shift a power, whatever width and sign are named."""
    opcodes = ("shl.b32", "mul.lo.s32", "mul.wide.u32", "mad.lo.s64", "mul.hi.u32", "mad.hi.s32")
    names = [uneven_name(tuple(opcode.split("."))) for opcode in opcodes]
    assert names == ["shl", "mul", "mul", "mul", "high", "high"]


def test_a_figure_knows_what_a_list_of_blocks_keeps() -> None:
    """Two of four blocks of 64 x 64; of other masks nothing is left out in blocks."""

    def share(mask: object) -> float:
        return kept(
            SimpleNamespace(prediction=SimpleNamespace(problem=SimpleNamespace(pair_mask=mask)))
        )  # type: ignore[arg-type]

    blocks = BlockMask.of_dense(np.array([[True, False], [True, False]]), 128, 128, 64, 64)
    assert share(blocks) == 0.5
    assert share(AttentionProblem(heads=1, seq_q=128, head_dim=64, mask="causal").pair_mask) == 1.0


def test_bits_are_counted() -> None:
    kind: Any = SimpleNamespace(bits=32)
    assert int(whole(leading_zeros(number(1), kind)).item()) == 31
    assert int(whole(count_bits(number(7), kind)).item()) == 3


@pytest.mark.parametrize("word", [BELOW, ABOVE, EQUAL])
def test_steps_until_a_difference_changes_sides(word: str) -> None:
    """Against counting: how many more steps it stays on its side of 0."""

    def side(difference: int) -> bool:
        return {BELOW: difference < 0, ABOVE: difference > 0, EQUAL: difference == 0}[word]

    for difference, step in itertools.product(range(-7, 8), range(-3, 4)):
        stays = next(
            (n - 1 for n in range(1, 40) if side(difference + n * step) != side(difference)), None
        )
        (until,) = _until(word, np.array([difference]), np.array([step]))
        assert (until > 30) if stays is None else (until == stays), (difference, step)


def test_check_bits_at_both_ends() -> None:
    l4 = load_profile("l4")
    read, written = with_check_bits((16_000, 32_000), (1_600, 3_200), 160, l4)
    # once to three times a sixteenth of what is read, and up to twice one of what is written
    assert read == (16_000 + 1_000, 32_000 + (3 * 32_000 + 2 * 160) // 16)
    assert written == (1_600 + 0, 3_200 + 2 * 200)
    h100 = load_profile("h100-sxm")
    assert with_check_bits((1, 2), (3, 4), 5, h100) == ((1, 2), (3, 4))


def test_the_error_of_a_scan_is_in_shares_of_its_re_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iosim.evidence.measure.fit.scan", lambda *_: (1500, 0))
    point = Point("cyclic", 1000, 3, 1, 1300)
    assert error_of(SimpleNamespace(), point) == (1500 - 1300) / (2 * 1000)  # type: ignore[arg-type]


def test_what_judges_is_held_out() -> None:
    def held_out(fitted: bool, number_: int) -> bool:
        group = SimpleNamespace(fitted=fitted)
        case = SimpleNamespace(number=number_)
        return Row(group, case, SimpleNamespace()).held_out  # type: ignore[arg-type]

    assert [held_out(True, n) for n in (3, 4)] == [False, True]
    assert [held_out(False, n) for n in (3, 4)] == [True, True]


def test_bytes_of_adam() -> None:
    assert ADAM_BYTES == 2 + 2 + 4 + 4 + 4  # weight, gradient, master weight, two moments


def test_heads_of_multi_head_attention_stay_tied() -> None:
    tied = LayerKind("full", 12, 16, 16, 64, 64)
    assert _kind_with(tied, "heads", 32).kv_heads == 32
    grouped = LayerKind("full", 12, 16, 4, 64, 64)
    assert _kind_with(grouped, "heads", 32).kv_heads == 4


@pytest.mark.parametrize(
    ("loaded", "read", "regime"),
    [
        (100, 100, "read once"),
        (104, 100, "read once"),
        (130, 100, "fits"),
        (400, 104, "fits"),
        (400, 390, "thrashing"),
    ],
)
def test_regimes_are_told_by_shares(loaded: int, read: int, regime: str) -> None:
    values = dict.fromkeys(Reuse.__dataclass_fields__, 0)
    values |= {"all_bytes": 100, "loaded_bytes": loaded, "hbm_read_bytes": read}
    held: Any = values | {"tensors": ("K",)}
    assert Reuse(**held).regime == regime


def test_an_operator_without_views_has_no_storage() -> None:
    operator = Operator.plain("none", (), "forward", "bf16", Chain({}, ()), {})
    assert Program.of_one(operator).storages == ()


def test_threads_of_the_sparse_indexer_by_gpu() -> None:
    problem = AttentionProblem(
        heads=128,
        kv_heads=1,
        seq_q=1,
        seq_k=8192,
        head_dim=576,
        head_dim_v=512,
        dtype="bf16",
        latent_kv=True,
        top_k=2048,
        index_heads=64,
        index_dim=128,
    )
    threads = {
        gpu: resolve("dsa", problem, load_profile(gpu)).options.index_threads  # type: ignore[union-attr]
        for gpu in ("h200", "b200")
    }
    assert threads == {"h200": 640, "b200": 384}


def test_spilled_bytes_have_a_row_in_the_capacity_rule() -> None:
    def has_row(kernel: str, passes: str) -> bool:
        problem = AttentionProblem(heads=4, seq_q=1024, head_dim=256, dtype="bf16", passes=passes)
        rows = predict(problem, kernel, "h100", method="capacity").traffic.rows
        return any(row.tensor == SPILL and row.level == "hbm" for row in rows)

    assert has_row("cudnn", "bwd")
    assert not has_row("fa2", "fwd")


def test_what_must_be_read_is_once_what_is_loaded() -> None:
    problem = AttentionProblem(batch=4, heads=64, seq_q=512, head_dim=64)
    call = planned(problem, "fa2", load_profile("a100"))
    # Q, K and V of 512 rows and 64 columns of two bytes, of 4 times 64 heads
    assert _compulsory_read(problem, call.chain) == 3 * 4 * 64 * 512 * 64 * 2


def test_warps_without_rows_do_what_their_tile_does() -> None:
    """130 queries in tiles of 128: the second tile has 2 rows, and 7 of its 8 warps of 16 rows none."""
    problem = AttentionProblem(heads=1, seq_q=130, seq_k=256, head_dim=64)
    (launch, *_) = planned(problem, "flash", load_profile("a100")).chain.launches
    steps = launch.domain.visited.count.sum()
    assert _own_steps(launch, 16) == pytest.approx(float(steps))


def test_labels_stand_apart_around_the_mean_of_their_places() -> None:
    assert apart([0.5, 0.5], 0.2, 0.0, 1.0) == pytest.approx([0.4, 0.6])
    assert apart([0.3, 0.5, 0.52], 0.2, 0.0, 1.0) == pytest.approx([0.24, 0.44, 0.64])
    # no room for a gap of 1: the five share what there is
    assert apart([2.0] * 5, 1.0, 2.0, 4.0) == pytest.approx([2.0, 2.5, 3.0, 3.5, 4.0])


def test_a_published_time_is_inside_its_range() -> None:
    def inside(
        measured: float, ends: tuple[float, float] | None, rounding: float = 0.0
    ) -> bool | None:
        time_range = None if ends is None else SimpleNamespace(seconds=ends)
        prediction = SimpleNamespace(
            time_range=time_range, time_s=5.0, kernel=SimpleNamespace(algorithm="flash")
        )
        sample = SimpleNamespace(
            quantity="time",
            measured=measured,
            launches_before=0,
            rounding=rounding,
            stack="",
            calls=1,
        )
        return _judged(sample, prediction).inside  # type: ignore[arg-type]

    assert [inside(5.0, (4.0, 6.0)), inside(7.0, (4.0, 6.0)), inside(5.0, None)] == [
        True,
        False,
        None,
    ]
    # 1 outside: inside as far as digits tell that are printed to within 1.1, not to within 0.6
    ends = (4.0, 6.0)
    assert [
        inside(7.0, ends, 0.6),
        inside(7.0, ends, 1.1),
        inside(3.0, ends, 0.6),
        inside(3.0, ends, 1.1),
    ] == [
        False,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("megahertz", "is_a_clock"),
    [("99.9", False), ("100", True), ("10000", True), ("10000.1", False)],
)
def test_clocks_are_of_some_gpu(megahertz: str, is_a_clock: bool) -> None:
    """From 100 MHz to 10 GHz, both ends with them."""
    if is_a_clock:
        assert Conditions(clocks=megahertz).clocks == 1e6 * float(megahertz)
    else:
        with pytest.raises(InputError, match="MHz such as 1500"):
            Conditions(clocks=megahertz)
