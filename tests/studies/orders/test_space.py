"""Orders: their space, their search, their code, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from orders_asked import FILE, H200, played
from scripts import load_script, measurements
from sm90 import fastest

from iosim.catalog.libraries import resolve
from iosim.kernel.schedule import Order, Schedule, Start
from iosim.problem.attention import AttentionProblem
from iosim.studies.orders.code import code
from iosim.studies.orders.space import choices, section_heads

pytestmark = pytest.mark.usefixtures("replays_once")


def test_the_catalog_has_the_instantiations_that_run() -> None:
    for head_dim in (64, 128):
        for mask in ("none", "causal"):
            spec = fastest(head_dim, mask)
            problem = AttentionProblem(
                heads=1, seq_q=1024, head_dim=head_dim, dtype="bf16", mask=mask
            )
            kernel = resolve(FILE, problem, H200)
            assert (kernel.tile.block_q, kernel.tile.block_k, kernel.tile.stages) == (
                spec.block_q,
                spec.block_k,
                spec.stages,
            )
            assert (kernel.cta_threads, kernel.shared_memory_bytes) == (
                spec.threads,
                spec.dynamic_shared_bytes,
            )
            assert kernel.schedule.claims_ahead == (spec.schedule == "dynamic")


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
    head_bytes = 4096 * 256 * 2  # bytes of a head's keys and values
    assert [
        section_heads(problem, n)
        for n in (1, head_bytes, 3 * head_bytes, 4 * head_bytes, 100 * head_bytes)
    ] == [
        4,
        4,
        8,
        16,
        256,
    ]


def test_what_was_predicted_holds_the_cases_that_the_script_lists() -> None:
    script = load_script("experiments/orders_proof.py")
    keys = [script.Case.of(row).key for row in script.rows_of(measurements("orders_predicted.csv"))]
    assert keys == [case.key for case in script.cases()]
    folded = Schedule(Order.HEAD, Start.FOLD, 4)
    source = script.triton_source(folded)
    compile(source, "flash_remapped", "exec")
    assert {f"    {line}" for line in code(folded, "triton").splitlines()} <= set(
        source.splitlines()
    )
