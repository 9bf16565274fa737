"""Orders: their space, their search, their code, and what is said of them."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import ROOT, load_script, measurements
from sm90 import Sm90Order, fastest, table_of

import iosim
from iosim.base.errors import InputError
from iosim.base.words import DEFAULT
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.schedule import Direction, Order, Schedule, Scheduler, Start
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.lowering import lower, start_order
from iosim.studies.orders import OrderRanking, search
from iosim.studies.orders.code import LANGUAGES, code, grid, sizes
from iosim.studies.orders.constant import check_constant
from iosim.studies.orders.space import choices, section_heads
from iosim.studies.requests import OrdersRequest

pytestmark = pytest.mark.usefixtures("replays_once")

FILE = "flash-sm90"
H200 = load_profile("h200")
CAUSAL = AttentionProblem(heads=8, seq_q=2048, head_dim=128, dtype="bf16", mask="causal")

SCHEDULES = st.builds(
    Schedule,
    order=st.sampled_from(Order),
    start=st.sampled_from(Start),
    section_heads=st.sampled_from((0, 1, 2, 3, 5, 8)),
    direction=st.sampled_from(Direction),
    scheduler=st.sampled_from(Scheduler),
    chiplets=st.sampled_from((1, 1, 2, 4, 8)),
    cluster=st.sampled_from((1, 2, 4)),
)


def test_the_catalog_has_the_instantiations_that_run() -> None:
    for head_dim in (64, 128):
        for mask in ("none", "causal"):
            spec = fastest(head_dim, mask)
            problem = AttentionProblem(
                heads=1, seq_q=1024, head_dim=head_dim, dtype="bf16", mask=mask
            )
            kernel = resolve(FILE, problem, H200)
            assert (kernel.tile.block_q, kernel.tile.block_k, kernel.tile.stages) == (
                spec.block_q, spec.block_k, spec.stages
            )  # fmt: skip
            assert (kernel.cta_threads, kernel.shared_memory_bytes) == (
                spec.threads,
                spec.dynamic_shared_bytes,
            )
            assert kernel.schedule.claims_ahead == (spec.schedule == "dynamic")


# --- code -------------------------------------------------------------------------------------------------------------


def played(schedule: Schedule, blocks: int, heads: int, batch: int) -> list[tuple[int, int]]:
    """(head, block) of the tiles in the order in which the replay starts them; those past a head's end left out."""
    problem = AttentionProblem(batch=batch, heads=heads, seq_q=16 * blocks, head_dim=8)
    launch = plan(problem, Kernel("flash", "flash", Tile(16, 16), schedule)).launches[0]
    return list(zip(*(one.tolist() for one in start_order(launch)), strict=True))


class FakeTriton:
    """`tl` of one program after the other: what the printed lines may ask."""

    def __init__(self, program: int, programs: int, counter: list[int]) -> None:
        self.program, self.programs, self.counter = program, programs, counter

    def program_id(self, axis: int) -> int:
        assert axis == 0
        return self.program

    def num_programs(self, axis: int) -> int:
        assert axis == 0
        return self.programs

    def minimum(self, a: int, b: int) -> int:
        return min(a, b)

    def atomic_add(self, counter: list[int], by: int) -> int:
        counter[0] += by
        return counter[0] - by


def run_triton(
    schedule: Schedule, blocks: int, heads: int, batch: int
) -> list[tuple[int, int, int]]:
    """(tile, head, block) of the printed lines, executed for every program."""
    lines = code(schedule, "triton").splitlines()
    indent = " " * 4 if schedule.scheduler is not Scheduler.STATIC else ""
    text = "\n".join(line.replace("...  # the tile", "at(tile, head, block)") for line in lines)
    text = text.replace("  # the last cluster is not full", "")
    if schedule.scheduler is Scheduler.STATIC:
        text += f"\n{indent}at(tile, head, block)"
    text = "def program():\n" + "\n".join(f"    {line}" for line in text.splitlines())
    total = eval(grid(schedule), {"blocks": blocks, "heads": batch * heads})
    programs = total if schedule.scheduler is Scheduler.STATIC else 3
    found: list[tuple[int, int, int]] = []
    counter = [0]
    for program in range(programs):
        scope: dict[str, Any] = {
            "tl": FakeTriton(program, programs, counter), "blocks": blocks, "heads": batch * heads, "batch": batch,
            "counter": counter, "at": lambda *place: found.append(place),
        }  # fmt: skip
        exec(text, scope)
        scope["program"]()
    return sorted(found)


@settings(max_examples=examples(40), deadline=None)
@given(SCHEDULES, st.integers(1, 9), st.integers(1, 7), st.integers(1, 3))
def test_printed_triton_lines_are_the_order_that_is_played(
    schedule: Schedule, blocks: int, heads: int, batch: int
) -> None:
    order = played(schedule, blocks, heads, batch)
    assert len(set(order)) == len(order) == blocks * heads * batch  # a bijection
    if schedule.chiplets > 1 and heads * batch % (schedule.section_heads or schedule.chiplets):
        return  # the printed lines want a multiple
    lines = [
        (head, block)
        for _, head, block in run_triton(schedule, blocks, heads, batch)
        if block < blocks
    ]
    assert lines == order


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[Schedule]], list[Any]]:
    """Compiles the printed CUDA functions as C, all in one file."""
    if shutil.which("gcc") is None:
        pytest.skip("no compiler")
    place = tmp_path_factory.mktemp("remap")

    def build(schedules: list[Schedule]) -> list[Any]:
        head = ("#define __device__\n#define __forceinline__ inline\ntypedef struct { int x, y; } int2;\n"
                "static int2 make_int2(int x, int y) { int2 v = {x, y}; return v; }\n"
                "static int min(int a, int b) { return a < b ? a : b; }\n")  # fmt: skip
        body = "".join(
            code(s, "cuda").replace("__device__ __forceinline__ int2 remap(", f"int2 remap{n}(")
            for n, s in enumerate(schedules)
        )
        (place / "remap.c").write_text(head + body)
        library = place / "remap.so"
        subprocess.run(
            ["gcc", "-O1", "-shared", "-fPIC", "-o", library, place / "remap.c"], check=True
        )
        loaded = ctypes.CDLL(str(library))

        class Pair(ctypes.Structure):
            _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_int))

        functions = [getattr(loaded, f"remap{n}") for n in range(len(schedules))]
        for function in functions:
            function.restype = Pair
        return functions

    return build


@pytest.mark.parametrize(
    ("section", "heads", "batch"), [(0, 16, 1), (16, 16, 3), (8, 16, 2), (0, 24, 2)]
)
def test_a_heads_tiles_meet_in_one_l2(section: int, heads: int, batch: int) -> None:
    """Workgroup w goes to L2 w mod 8: by its number a head's tiles all have one."""
    for order in (Order.QUERY, Order.HEAD):
        tiles = played(Schedule(order, section_heads=section, chiplets=8), 5, heads, batch)
        assert sorted(tiles) == list(product(range(heads * batch), range(5)))
        meets: dict[int, set[int]] = {}
        for number, (head, _) in enumerate(tiles):
            meets.setdefault(head, set()).add(number % 8)
        assert all(len(l2s) == 1 for l2s in meets.values())


def test_queries_fastest_with_heads_shared_out_are_the_swizzled_head_first_mapping() -> None:
    """arXiv 2511.02132: of H heads of Q blocks, head (w mod 8) H/8 + w // 8Q and block (w mod 8Q) // 8."""
    heads, blocks = 64, 12
    wid = range(heads * blocks)
    paper = [(w % 8 * (heads // 8) + w // (8 * blocks), w % (8 * blocks) // 8) for w in wid]
    assert played(Schedule(chiplets=8), blocks, heads, 1) == paper


def test_heads_fastest_with_heads_shared_out_are_hipkittens_remap() -> None:
    """Of a grid (heads, blocks, batch), head x becomes (x mod 8) H/8 + x // 8."""
    heads, blocks, batch = 64, 3, 2
    numbers = product(range(batch), range(blocks), range(heads))
    grid_order = [(z * heads + x % 8 * (heads // 8) + x // 8, y) for z, y, x in numbers]
    assert (
        played(Schedule(Order.HEAD, section_heads=heads, chiplets=8), blocks, heads, batch)
        == grid_order
    )


@pytest.mark.parametrize(("section", "heads"), [(0, 12), (8, 12), (6, 12)])
def test_heads_that_do_not_share_out_keep_their_order(section: int, heads: int) -> None:
    plain = Schedule(Order.HEAD, section_heads=section)
    assert played(replace(plain, chiplets=8 if section != 8 else 4), 3, heads, 1) == played(
        plain, 3, heads, 1
    )


def test_printed_cuda_functions_are_the_order_that_is_played(
    compiled: Callable[[list[Schedule]], list[Any]],
) -> None:
    schedules = [
        Schedule(order, start, section, cluster=cluster)
        for order, start, section, cluster in product(Order, Start, (0, 1, 2, 3, 9), (1, 2))
    ]
    for schedule, function in zip(schedules, compiled(schedules), strict=True):
        for blocks, heads, batch in ((5, 3, 2), (4, 7, 1), (1, 1, 1)):
            named = {"blocks": blocks, "heads": heads * batch, "batch": batch}
            given = [named[name] for name in sizes(schedule)]
            total = eval(grid(schedule), dict(named))
            places = [function(tile, *given) for tile in range(total)]
            assert [(p.x, p.y) for p in places if p.y < blocks] == played(
                schedule, blocks, heads, batch
            )


@settings(max_examples=examples(30), deadline=None)
@given(SCHEDULES, st.integers(1, 12))
def test_printed_key_blocks_are_walked_as_played(schedule: Schedule, seq: int) -> None:
    problem = AttentionProblem(heads=1, seq_q=16 * seq, head_dim=8, mask="causal")
    low = lower(plan(problem, Kernel("flash", "flash", Tile(16, 16), schedule)), 1).launches[0]
    expression = code(schedule, "formula").splitlines()[-1].removeprefix("key_block = ")
    for block, first, count, down in zip(low.block.tolist(), low.first.tolist(), low.count.tolist(), low.down.tolist(),
                                         strict=True):  # fmt: skip
        walked = [
            eval(
                expression, {"t": t, "block": block, "first_key": first, "last_key": first + count}
            )
            for t in range(count)
        ]
        keys = list(range(first, first + count))
        assert walked == (keys[::-1] if down else keys)


def test_an_unknown_language_is_refused() -> None:
    assert all(code(Schedule(), language) for language in LANGUAGES)
    with pytest.raises(InputError, match="code 'fortran' is not known"):
        code(Schedule(), "fortran")


def test_flash_fwd_sm90_numbers_its_tiles_as_the_formula_does() -> None:
    """`tile_at` of flash_fwd_sm90.cuh, in Python, for every order of its own."""
    for order, blocks, section in product(
        ("query", "head"), ("light_first", "heavy_first", "fold"), (0, 2, 3)
    ):
        asked, heads, query_blocks = Sm90Order(order, blocks, section), 7, 5
        width_of, numbers = asked.section(heads), []
        for index in range(heads * query_blocks):
            first = index // (query_blocks * width_of) * width_of
            width, rest = min(width_of, heads - first), index - first * query_blocks
            u = rest // width
            block = {"light_first": u, "heavy_first": query_blocks - 1 - u,
                     "fold": u // 2 if u % 2 else query_blocks - 1 - u // 2}[blocks]  # fmt: skip
            numbers.append((first + rest % width, block))
        start = Start(blocks.replace("_", "-"))
        schedule = Schedule(Order(order), start, section if order == "head" else 0)
        assert played(schedule, query_blocks, heads, 1) == numbers


@settings(max_examples=examples(20), deadline=None)
@given(SCHEDULES, st.integers(1, 6), st.integers(1, 5), st.integers(1, 3))
def test_a_remap_table_holds_any_order(
    schedule: Schedule, blocks: int, heads: int, batch: int
) -> None:
    """What flash_fwd_sm90 reads of it: head = number / query_blocks, query_block = number % query_blocks."""
    table = table_of(schedule, blocks, heads * batch, batch)
    taken = [(number // blocks, number % blocks) for number in table.tolist()]
    assert taken == played(replace(schedule, cluster=1), blocks, heads, batch)


# --- the space and the search -----------------------------------------------------------------------------------------


def test_orders_that_are_the_same_are_listed_once() -> None:
    problem = AttentionProblem(heads=4, seq_q=512, head_dim=64, dtype="bf16")
    listed = choices([problem], [resolve("fa2", problem, H200)])
    # without a mask no block is heavier: queries, heads, sections of 2; up, down and in turns as the kernel itself or
    # not; three schedulers
    assert len(listed) == 1 + 3 * 2 * 3
    assert {c.start for c in listed} == {Start.LIGHT_FIRST}
    causal = problem.with_(mask="causal")
    assert len(choices([causal], [resolve("fa2", causal, H200)])) == 3 * 3 * 3 * 3
    grouped = causal.with_(heads=8, kv_heads=2)
    assert {c.section_heads for c in choices([grouped], [resolve("fa2", grouped, H200)])} == {0, 4}


def test_sections_by_bytes_are_whole_powers_of_two() -> None:
    problem = AttentionProblem(heads=32, kv_heads=8, seq_q=4096, head_dim=128, dtype="bf16")
    one = 4096 * 256 * 2  # bytes of a head's keys and values
    assert [section_heads(problem, n) for n in (1, one, 3 * one, 4 * one, 100 * one)] == [
        4,
        4,
        8,
        16,
        256,
    ]


@pytest.fixture(scope="module")
def ranking() -> OrderRanking:
    return search.rank_orders(OrdersRequest(problems=[CAUSAL], kernel=FILE, gpu=H200))


def test_a_ranking_predicts_what_predict_does(ranking: OrderRanking) -> None:
    best = ranking.best
    assert best.hbm_bytes <= ranking.own.hbm_bytes
    assert best.time_s <= 1.01 * min(e.time_s for e in ranking.orders)
    kernel = resolve(FILE, CAUSAL, H200)
    own = predict(CAUSAL, kernel, H200)
    (listed,) = (e for e in ranking.orders if e.is_own)
    assert (listed.hbm_bytes, listed.time_s) == (own.total("hbm"), own.time.total_s)
    assert ranking.own.hbm_bytes == listed.hbm_bytes


def test_the_front_has_nothing_better_in_both(ranking: OrderRanking) -> None:
    assert ranking.pareto
    for e in ranking.orders:
        beaten = any(
            o.time_s <= e.time_s
            and o.hbm_bytes <= e.hbm_bytes
            and (o.time_s, o.hbm_bytes) != (e.time_s, e.hbm_bytes)
            for o in ranking.orders
        )
        assert e.on_front != beaten or not e.on_front


@pytest.mark.slow
def test_a_search_with_little_to_spend_finds_as_good_an_order(
    ranking: OrderRanking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The likeliest whole, the others in coarse steps or left out where another beats them."""
    monkeypatch.setattr(search, "ALL_ACCESSES", 0)
    for budget in (60_000, 0):
        monkeypatch.setattr(search, "COARSE_ACCESSES", budget)
        monkeypatch.setattr(search, "LEAST_COARSE", 500)
        pruned = search.rank_orders(OrdersRequest(problems=[CAUSAL], kernel=FILE, gpu=H200))
        assert pruned.best.is_whole
        assert pruned.best.time_s <= 1.02 * ranking.best.time_s
        assert pruned.best.hbm_bytes <= 1.1 * ranking.best.hbm_bytes
        assert any(not e.is_whole for e in pruned.orders) == bool(budget)
        assert any("coarse" in note for note in pruned.notes) == bool(budget)
        assert bool(pruned.left_out) == (not budget)
        assert any(e.is_own for e in pruned.orders)


def test_several_problems_have_one_order() -> None:
    two = [CAUSAL.with_(seq_q=2048, seq_k=2048), CAUSAL.with_(seq_q=4096, seq_k=4096)]
    kept = {"scheduler": "static", "direction": "ascending"}
    ranking = search.rank_orders(
        OrdersRequest(problems=two, kernel=FILE, gpu=H200, weights=[3, 1], **kept)
    )
    best = ranking.best
    assert len(best.parts) == 2
    assert best.time_s == pytest.approx(3 * best.parts[0].time_s + best.parts[1].time_s)
    assert {e.choice.scheduler for e in ranking.orders} == {Scheduler.STATIC}
    assert any(e.choice.section_bytes for e in ranking.orders)


def test_blackwells_own_order_is_an_assumption_that_is_told() -> None:
    problem = CAUSAL.with_(seq_q=512, seq_k=512, heads=2, kv_heads=2)
    asked = OrdersRequest(problems=[problem], kernel=DEFAULT, gpu="b200", direction="descending")
    ranking = search.rank_orders(asked)
    assert ranking.kernel == "fa4"
    assert any("cluster launch control" in note for note in ranking.notes)


def test_a_constant_is_right_where_no_section_is_better() -> None:
    problems = [CAUSAL.with_(seq_q=n, seq_k=n) for n in (1024, 8192)]
    check = check_constant(8 << 20, problems, FILE, H200)
    assert [row.constant.heads for row in check.rows] == [0, 2]  # 0.5 and 4 MiB a head
    for row in check.rows:
        assert set(row.by_heads) == {1, 2, 4, 0}
        assert row.best.hbm_bytes <= row.constant.hbm_bytes or row.best.time_s < row.constant.time_s
    assert check.best_constant[1] >= check.right
    with pytest.raises(InputError, match="section 0 is out of range"):
        check_constant(0, problems, FILE, H200)


# --- the command, and Python ------------------------------------------------------------------------------------------

ASKED = "orders --gpu h200 --heads 4 --seq-len 1k --causal --scheduler static --direction ascending"


def told(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(line.split()) == 0
    return capsys.readouterr().out


def test_the_json_is_the_contracts(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(told(f"{ASKED} --format json", capsys))
    first = found["orders"][0]
    keys = ("order", "section_heads", "direction", "heavy_first", "scheduler", "block_q", "block_k", "hbm_read_bytes",
            "hbm_write_bytes", "time_s")  # fmt: skip
    assert found["schema"] == 1
    assert all(key in first for key in keys)
    ranking = iosim.orders(
        gpu="h200", heads=4, seq_len="1k", causal=True, scheduler="static", direction="ascending"
    )
    plain = json.loads(json.dumps([entry.to_dict() for entry in ranking.orders]))
    assert found["orders"] == [{"profile": "h200-sxm"} | entry for entry in plain]
    assert len(json.loads(told(f"{ASKED} --top 2 --format json", capsys))["orders"]) == 2


@pytest.mark.parametrize("language", LANGUAGES)
def test_code_of_the_best_order(language: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(f"{ASKED} --order head --section-heads 2 --code {language}", capsys)
    comment, _, rest = text.partition("\n")
    assert "sections of 2 heads" in comment
    assert rest == iosim.orders(gpu="h200", heads=4, seq_len="1k", causal=True, scheduler="static",
                                direction="ascending", section_heads=2).code(language)  # fmt: skip


def test_a_table_names_the_kernels_own_order(capsys: pytest.CaptureFixture[str]) -> None:
    text = told("orders --gpu h200 --heads 4 --seq-len 1k --causal --kernel fa2 --top 1", capsys)
    assert text.count("its own") >= 1
    assert text.startswith("fa2 on h200-sxm in fp16 does best with ")
    assert "On h200-sxm at 1,024 tokens and 4 heads of 128 columns, causal: " in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--check-constant 50MiB", "--check-constant '50MiB' is not known; accepted: section=SIZE"),
        ("--check-constant section=much", "accepted: section=SIZE, such as section=50MiB"),
        ("--weights 1,2", "--weights are 2; accepted: 1, one for each problem"),
        ("--weights none", "--weights none: no numbers"),
        ("--weights 0", "--weights 0.0 is out of range"),
        ("--kernel naive", "--kernel naive: no launch loops over keys"),
        ("--pass fwd+bwd", "--pass fwd+bwd: orders are searched for one pass at a time"),
        ("--fold --heavy-first", "--fold contradicts --heavy-first"),
        ("--cluster 2", "--cluster 2: a100-sxm-80gb has no clusters of CTAs"),
        ("--top 0", "--top 0 is out of range"),
    ],
)
def test_bad_input(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["orders", "--heads", "2", "--seq-len", "256", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert message in err
    assert err.count("\n") == 1


def test_to_pandas_and_figure(ranking: OrderRanking, tmp_path: Path) -> None:
    frame = ranking.to_pandas()
    assert len(frame) == len(ranking.orders)
    assert np.isclose(frame["time_s"][0], ranking.best.time_s)
    assert ranking.figures == ("orders",)


# --- iosim.triton.remap, and the record -------------------------------------------------------------------------------


def test_remap_takes_a_ranking_an_entry_a_schedule_or_words(ranking: OrderRanking) -> None:
    import iosim.triton

    best = ranking.best.parts[0].schedule
    lines = iosim.triton.remap(ranking)
    assert (
        lines
        == iosim.triton.remap(ranking.best)
        == iosim.triton.remap(best)
        == code(best, "triton")
    )
    by_words = Schedule(Order.HEAD, Start.HEAVY_FIRST, 4, Direction.DESCENDING)
    assert iosim.triton.remap(
        "head", section_heads=4, heavy_first=True, direction="descending"
    ) == code(by_words, "triton")
    own = resolve("fa2", CAUSAL, H200)
    assert iosim.triton.remap(own) == code(own.schedule, "triton")
    with pytest.raises(InputError, match="section_heads contradicts order"):
        iosim.triton.remap(best, section_heads=4)
    with pytest.raises(InputError, match="order 'diagonal' is not known"):
        iosim.triton.remap("diagonal")


def test_the_page_has_the_summary_of_the_record() -> None:
    script = load_script("experiments/orders_proof.py")
    table = load_script("experiments/orders_table.py")
    predicted, measured = (
        script.rows_of(measurements(f"{name}.csv")) for name in ("orders_predicted", "h200_orders")
    )
    page = (ROOT / "docs" / "orders.md").read_text(encoding="utf-8").splitlines()
    grouped = table.joined(predicted, measured)
    assert not [line for line in table.summary(grouped) if line not in page]
    assert len(grouped) == 23
    within = [
        sum(table.time_ratio(pairs) <= most for pairs in grouped.values()) for most in (1.02, 1.05)
    ]
    assert within == [17, 22]  # as the README says
    assert all(
        table.byte_ratio(pairs) <= 1.05
        for (kernel, *_), pairs in grouped.items()
        if kernel == table.OWN
    )


def test_what_was_predicted_holds_the_cases_that_the_script_lists() -> None:
    script = load_script("experiments/orders_proof.py")
    told = [script.Case.of(row).key for row in script.rows_of(measurements("orders_predicted.csv"))]
    assert told == [case.key for case in script.cases()]
    folded = Schedule(Order.HEAD, Start.FOLD, 4)
    source = script.triton_source(folded)
    compile(source, "flash_remapped", "exec")
    assert {f"    {line}" for line in code(folded, "triton").splitlines()} <= set(
        source.splitlines()
    )
