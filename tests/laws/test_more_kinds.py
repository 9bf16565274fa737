"""Cases between the usual ones: tables without numbers of calls, sizes that follow others, plots of memory, rows that are
held against a reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iosim.base.errors import InputError
from iosim.evidence.validate.rows import CHAIN, LAUNCH_COLUMNS, NEEDED, read
from iosim.hardware.profile import load_profile
from iosim.kernel.overrides import Overrides
from iosim.prediction.predictor import planned
from iosim.problem.attention import AttentionProblem
from iosim.readers.formula.sums import BlockSums
from iosim.studies.sweep.cases import Part, Words
from iosim.studies.trace.trace import check_bins
from iosim.studies.training import Decoder, Setup, predict_training
from iosim.studies.training.prediction import memory_panel


def test_rows_without_numbers_are_calls_as_they_stand(tmp_path: Path) -> None:
    """A table of launches may leave out `call` and `launch`, where each row is a call of one launch."""
    columns = [c for c in (*LAUNCH_COLUMNS, *NEEDED) if c not in ("call", "launch")]
    values = {"implementation": "flash_fwd", **dict.fromkeys(NEEDED, "64")}
    lines = [",".join(values.get(c, "") for c in columns)] * 3
    file = tmp_path / "rows.csv"
    file.write_text("\n".join([",".join(columns), *lines]) + "\n", encoding="utf-8")
    assert [(row.call, row.launch, row.chain) for row in read(file)] == [
        (1, 1, False),
        (2, 1, False),
        (3, 1, False),
    ]
    assert "call" not in CHAIN


@pytest.mark.parametrize(
    ("latent", "stated", "follows"),
    [
        (None, None, [8, 16]),  # key/value heads are heads
        ([False, True], None, [8, 1]),  # a latent cache has one
        ([False, True], [2, None], [2, 1]),
        ([True, True], [None, 4], [1, 4]),
    ],
)
def test_key_value_heads_follow_heads(
    latent: Sequence[bool] | None, stated: Sequence[int | None] | None, follows: list[int]
) -> None:
    columns = {"heads": Words.of([8, 16]), "head_dim": Words.of([64, 128])}
    if latent is not None:
        columns["latent_kv"] = Words.of(latent)
    if stated is not None:
        columns["kv_heads"] = Words.of(stated)
    part = Part(0, 2, columns)
    assert part.followed("kv_heads").tolist() == follows
    assert part.followed("head_dim_v").tolist() == [64, 128]


@pytest.mark.parametrize(("width", "layers", "memory_shown"), [(512, 2, False), (2048, 20, True)])
def test_a_plot_of_memory_reaches_what_it_shows(
    width: int, layers: int, memory_shown: bool
) -> None:
    """The GPU's memory is drawn where the peak comes near it; the axis then holds both."""
    model = Decoder(layers=layers, width=width, heads=8, vocabulary=1000)
    prediction = predict_training(model, Setup(seq_len=128), "l4")
    capacity, peak = prediction.capacity_bytes / 1e9, prediction.peak_bytes / 1e9
    panel, _ = memory_panel(prediction)
    assert any(trace["name"] == "memory" for trace in panel.data) == memory_shown
    top = panel.layout["yaxis"]["range"][1]
    assert top == pytest.approx(1.1 * (max(peak, capacity) if memory_shown else peak))


@pytest.mark.parametrize("bins", [1, 100_000])
def test_as_many_bins_as_are_offered(bins: int) -> None:
    check_bins(bins)
    with pytest.raises(InputError, match="1 to 100000"):
        check_bins(100_001)


def on_the_cpu(torch: Any, name: str) -> Any:
    function = getattr(torch, name)
    return lambda *words, device=None, **more: function(*words, **more)


def test_rows_of_a_reference_are_ends_and_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from iosim.evidence.measure import harness

    for name in ("arange", "randint"):
        cpu = on_the_cpu(torch, name)
        monkeypatch.setattr(torch, name, cpu)
    torch.manual_seed(1)
    case: Any = SimpleNamespace(
        shape=SimpleNamespace(batch=64, heads=64, seq_q=1 << 16, seq_k=1 << 16)
    )
    rows = harness.reference_rows(case).tolist()
    ends = {*range(64), *range((1 << 16) - 64, 1 << 16)}
    assert {*rows} >= ends
    # 64 more are drawn of 65,536: two of them seldom meet.
    assert 56 <= len({*rows} - ends) <= 64
    assert rows == sorted(rows)


@pytest.mark.parametrize("packed", [False, True])
def test_sequences_of_several_lengths_are_packed(
    monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    torch = pytest.importorskip("torch")
    from iosim.evidence.measure import torch_run

    shapes: list[tuple[int, ...]] = []
    monkeypatch.setattr(torch_run, "_packed", lambda case, *qkv: "packed")
    monkeypatch.setattr(torch, "manual_seed", lambda seed: None)

    def randn(*shape: int, **more: Any) -> Any:
        shapes.append(shape)
        if not packed:
            raise InputError("of one length")
        return None

    monkeypatch.setattr(torch, "randn", randn)
    case: Any = SimpleNamespace(
        passes="fwd",
        heads=8,
        kv_heads=2,
        seq_q=300,
        seq_k=300,
        head_dim=64,
        head_dim_v=64,
        dtype="fp16",
        batch=1,
        seq_lens=(100, 200) if packed else (),
    )
    if packed:
        assert torch_run.prepared(case, 1) == "packed"
        assert shapes == [(300, 8, 64), (300, 2, 64), (300, 2, 64)]
    else:
        with pytest.raises(InputError):
            torch_run.prepared(case, 1)
        assert shapes == [(1, 8, 300, 64)]


def test_codes_of_words_are_of_their_type() -> None:
    """1, True and 1.0 are equal in Python, and three values of a column."""
    words = Words.of([1, True, 1.0, None, 1])
    assert [type(value) for value in words.tolist()] == [int, bool, float, type(None), int]
    assert np.array_equal(words.codes, [0, 1, 2, 3, 0])


@pytest.mark.parametrize("mask", ["causal", "window"])
@pytest.mark.parametrize("tile", [(64, 32), (64, 96), (128, 48)])
def test_ends_of_walks_in_closed_form_are_those_counted(mask: str, tile: tuple[int, int]) -> None:
    """Sums of ceil(end / keys) for sectors that no key block is a multiple of, block by block."""
    more = {} if mask == "causal" else {"window": 100}
    for tokens, keys in ((1000, 64), (1000, 56), (777, 40), (640, 128), (333, 1)):
        problem = AttentionProblem(heads=1, seq_q=tokens, head_dim=64, mask=mask, **more)  # type: ignore[arg-type]
        (launch, *_) = planned(
            problem, "flash", load_profile("a100"), overrides=Overrides(tile=tile)
        ).chain.launches
        domain = launch.domain
        visited = domain.visited
        ends = np.minimum(visited.end * domain.block_k, domain.seq_k)[visited.count > 0]
        assert int(BlockSums(domain)._ends(keys)) == int((-(-ends // keys)).sum()), (tokens, keys)


@pytest.mark.parametrize("kernel", ["naive", "math", "fa2", "flex"])
def test_options_that_a_kernel_lacks_are_left_alone(kernel: str) -> None:
    """What fills FlexAttention's lists is an operator of its own in a program, and no option of other kernels."""
    attention = pytest.importorskip("iosim.integrations.torch.attention")
    problem = AttentionProblem(heads=8, seq_q=256, head_dim=64)
    chosen: Any = SimpleNamespace(problem=problem, kernel=kernel)
    recorder: Any = SimpleNamespace(profile=load_profile("a100"))
    _, resolved, _ = attention.planned(recorder, chosen, "fwd", wants_lse=False)
    assert resolved.name == kernel
    assert getattr(resolved.options, "fills_lists", False) is False
