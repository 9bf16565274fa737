"""Orders as code: printed Triton and CUDA is the order that is played."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from orders_asked import CAUSAL, H200, played
from sm90 import Sm90Order, table_of

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.schedule import Direction, Order, Schedule, Scheduler, Start
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.lowering import lower
from iosim.studies.orders import OrderRanking
from iosim.studies.orders.code import LANGUAGES, code, grid, sizes

pytestmark = pytest.mark.usefixtures("replays_once")


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
    places: list[tuple[int, int, int]] = []
    counter = [0]
    for program in range(programs):
        scope: dict[str, Any] = {
            "tl": FakeTriton(program, programs, counter),
            "blocks": blocks,
            "heads": batch * heads,
            "batch": batch,
            "counter": counter,
            "at": lambda *place: places.append(place),
        }
        exec(text, scope)
        scope["program"]()
    return sorted(places)


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
        head = (
            "#define __device__\n#define __forceinline__ inline\ntypedef struct { int x, y; } int2;\n"
            "static int2 make_int2(int x, int y) { int2 v = {x, y}; return v; }\n"
            "static int min(int a, int b) { return a < b ? a : b; }\n"
        )
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
            arguments = [named[name] for name in sizes(schedule)]
            total = eval(grid(schedule), dict(named))
            places = [function(tile, *arguments) for tile in range(total)]
            assert [(p.x, p.y) for p in places if p.y < blocks] == played(
                schedule, blocks, heads, batch
            )


@settings(max_examples=examples(30), deadline=None)
@given(SCHEDULES, st.integers(1, 12))
def test_printed_key_blocks_are_walked_as_played(schedule: Schedule, seq: int) -> None:
    problem = AttentionProblem(heads=1, seq_q=16 * seq, head_dim=8, mask="causal")
    low = lower(plan(problem, Kernel("flash", "flash", Tile(16, 16), schedule)), 1).launches[0]
    expression = code(schedule, "formula").splitlines()[-1].removeprefix("key_block = ")
    for block, first, count, down in zip(
        low.block.tolist(), low.first.tolist(), low.count.tolist(), low.down.tolist(), strict=True
    ):
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
        order_here = Sm90Order(order, blocks, section)
        heads = 7
        query_blocks = 5
        width_of, numbers = order_here.section(heads), []
        for index in range(heads * query_blocks):
            first = index // (query_blocks * width_of) * width_of
            width = min(width_of, heads - first)
            rest = index - first * query_blocks
            u = rest // width
            block = {
                "light_first": u,
                "heavy_first": query_blocks - 1 - u,
                "fold": u // 2 if u % 2 else query_blocks - 1 - u // 2,
            }[blocks]
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
    kernel = resolve("fa2", CAUSAL, H200)
    assert iosim.triton.remap(kernel) == code(kernel.schedule, "triton")
    with pytest.raises(InputError, match="section_heads contradicts order"):
        iosim.triton.remap(best, section_heads=4)
    with pytest.raises(InputError, match="order 'diagonal' is not known"):
        iosim.triton.remap("diagonal")
