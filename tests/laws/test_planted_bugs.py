"""Mistakes planted in the description or in the counter: the agreement of the readers must catch each one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import counter
import numpy as np
import pytest
from effort import some
from strategies import OVERHEADS, altered, disagreements

import iosim.problem.masks.mask
import iosim.readers.formula.closed_form
from iosim.catalog.algorithms import options_for, plan
from iosim.kernel.kernel import Kernel, Schedule, Scheduler, Tile
from iosim.kernel.launch import (
    Access,
    Chain,
    Domain,
    Edge,
    Launch,
    Mode,
    Outer,
    Per,
    Role,
    Rows,
    Tensor,
)
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks import BlockMask
from iosim.problem.masks.mask import Axis, IntervalMask, KeyBlocks

pytestmark = pytest.mark.slow
READERS = (counter, iosim.readers.formula.closed_form)

Case = tuple[AttentionProblem, Kernel]


def _case(
    algorithm: str,
    *,
    tile: tuple[int, int] = (8, 6),
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> Case:
    """Ragged, grouped, causal with more keys than queries, unless `changes` say otherwise."""
    values: dict[str, Any] = {
        "batch": 2,
        "heads": 4,
        "kv_heads": 2,
        "seq_q": 21,
        "seq_k": 27,
        "head_dim": 8,
        "head_dim_v": 10,
        "mask": "causal",
    }
    kernel = {n: changes.pop(n) for n in tuple(changes) if n in Kernel.__dataclass_fields__}
    problem = AttentionProblem(**(values | changes))
    return problem, Kernel(
        algorithm, algorithm, Tile(*tile), options=options_for(algorithm, options or {}), **kernel
    )


CASES: dict[str, Case] = {
    "flash": _case("flash", passes="fwd+bwd", dropout=0.2),
    "flash backward": _case("flash", passes="bwd"),
    "flash rereads": _case("flash", rereads_q=True, edge_k=Edge.NEEDED, layout="bshd", head_dim=10),
    "flash split": _case("flash", splits=3),
    "flash split, max and sum": _case("flash", splits=2, options={"statistics_per_row": 2}),
    "flash packed decode": _case("flash", seq_q=1, packs_group=True, splits=2),
    "flash packed tokens": _case("flash", packs_group=True, splits=2),
    "flash paged": _case("flash", page_size=4, splits=2, options={"append_kv": True}),
    "mla": _case("mla", latent_kv=True, head_dim=12, splits=2, page_size=6),
    "flash whole tiles": _case(
        "flash", edge_q=Edge.WHOLE, edge_k=Edge.WHOLE, mask="window", window=7
    ),
    "flash empty rows": _case("flash", mask="causal", offset=-9, passes="fwd+bwd"),
    "flash blocks": _case(
        "flash", tile=(4, 2), mask="butterfly", mask_block=2, seq_k=21, passes="fwd+bwd"
    ),
    "flash packed sequences": _case(
        "flash",
        batch=1,
        seq_q=1,
        seq_k=None,
        seq_lens=(13, 1, 7),
        seq_lens_k=(9, 16, 2),
        passes="fwd+bwd",
    ),
    "flash persistent": _case(
        "flash",
        persistent_ctas=5,
        schedule=Schedule(scheduler=Scheduler.DYNAMIC),
        overheads=OVERHEADS,
    ),
    "flash fp8, V transposed apart": _case(
        "flash_fp8", dtype="fp8", options={"transpose_v": "separate"}
    ),
    "flash1 to the letter": _case("flash1", passes="fwd+bwd", dropout=0.2),
    "flash1 in fp32": _case(
        "flash1",
        passes="fwd+bwd",
        options={"to_the_letter": False, "intermediate_bytes": 4, "output_read_once": True},
    ),
    "efficient": _case("efficient", head_dim_v=8, passes="fwd+bwd", dropout=0.2),
    "efficient, sums of keys in memory": _case(
        "efficient",
        head_dim=18,
        offset=2,
        passes="bwd",
        kv_heads=4,
        options={"key_splits": 2, "keeps_keys": False},
    ),
    "efficient, one CTA a head": _case(
        "efficient", seq_k=15, passes="bwd", bias="full", bias_grad=True, options={"key_splits": 1}
    ),
    "efficient in fp32": _case("efficient", dtype="fp32", passes="bwd", options={"key_splits": 3}),
    "naive": _case(
        "naive",
        passes="fwd+bwd",
        dropout=0.2,
        options={"passes": ("scale_q", "scale", "mask", "dropout"), "gemm_tile": (8, 6)},
    ),
    "naive product": _case(
        "naive", passes="fwd+bwd", options={"softmax_backward_product": True, "gemm_tile": (8, 6)}
    ),
    "math": _case("math", dropout=0.2, offset=-9),  # rows without keys: what its select is for
    "flash bias": _case(
        "flash",
        passes="fwd+bwd",
        dropout=0.2,
        bias="full",
        bias_shared="heads",
        bias_grad=True,
        key_padding=True,
    ),
    "flash stored mask": _case(
        "flash",
        passes="fwd+bwd",
        bias="alibi",
        mask_storage="bool",
        edge_k=Edge.NEEDED,
        options={"converts_mask": True},
    ),
    "naive bias": _case(
        "naive",
        passes="fwd+bwd",
        bias="full",
        bias_shared="both",
        bias_grad=True,
        key_padding=True,
        mask_storage="additive",
        options={"gemm_tile": (8, 6)},
    ),
    "naive alibi": _case("naive", bias="alibi", dtype="fp32"),
    "math bias": _case("math", bias="full", key_padding=True, mask_storage="bool", offset=-9),
    "minimal": _case(
        "minimal", tile=(4, 6), kv_heads=4, seq_q=24, seq_k=30, mask="none", dtype="fp32"
    ),
    "uniform": _case("uniform", kv_heads=4, passes="fwd+bwd"),
    "uniform in two tiles": _case(
        "uniform", kv_heads=4, writes_lse=False, options={"value_heads_per_tile": 2}
    ),
    "uniform through memory": _case(
        "uniform_naive", kv_heads=4, passes="fwd+bwd", options={"gemm_tile": (8, 6)}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_planted_nothing_found(name: str) -> None:
    assert disagreements(*CASES[name]) == []


# Mistakes of the description: both readers are given the altered chain.

UNSEEN_LAUNCHES = {
    ("math", "cast_P"),  # the weights that it writes are returned to nobody
}


def _variants(change: Callable[[str, Access], Access | None]) -> list[Any]:
    """Every chain with `change` made to one access; None drops it."""
    cases = []
    for name, (problem, kernel) in CASES.items():
        chain = plan(problem, kernel)
        for launch in chain.launches:
            for n, access in enumerate(launch.accesses):
                new = change(name, access)
                if new != access:
                    accesses = (
                        *launch.accesses[:n],
                        *((new,) if new else ()),
                        *launch.accesses[n + 1 :],
                    )
                    label = f"{name}: {launch.name} {access.mode} {access.tensor}"
                    cases.append(
                        pytest.param(name, altered(chain, launch.name, accesses=accesses), id=label)
                    )
    return some(cases)


def _turned(name: str, access: Access) -> Access:
    return replace(access, mode=Mode.STORE if access.mode is Mode.LOAD else Mode.LOAD)


COVERED = {
    ("efficient", "K")
}  # loaded once a key block for the scores and once a pair for dQ: each would do for both


@pytest.mark.parametrize(
    ("name", "chain"),
    _variants(lambda name, access: access if (name, access.tensor) in COVERED else None),
)
def test_an_access_dropped(name: str, chain: Chain) -> None:
    assert disagreements(*CASES[name], chain=chain)


@pytest.mark.parametrize(("name", "chain"), _variants(_turned))
def test_read_and_write_swapped(name: str, chain: Chain) -> None:
    assert disagreements(*CASES[name], chain=chain)


@pytest.mark.parametrize(
    ("name", "chain"),
    _variants(lambda _, a: replace(a, per=Per.QUERY) if a.per is Per.SPLIT else a),
)
def test_a_split_forgotten(name: str, chain: Chain) -> None:
    assert disagreements(*CASES[name], chain=chain)


@pytest.mark.parametrize(
    ("name", "chain"),
    _variants(lambda _, a: replace(a, mode=Mode.STORE) if a.mode is Mode.REDUCE else a),
)
def test_an_atomic_add_made_a_store(name: str, chain: Chain) -> None:
    assert disagreements(*CASES[name], chain=chain)


UNREAD_AFTERWARDS = {
    ("minimal", "l"),  # the last l and m of minimal are read by nobody
    ("minimal", "m"),
}


def _last_store_skipped(name: str, access: Access) -> Access:
    if (
        access.per is not Per.PAIR
        or access.mode is Mode.LOAD
        or (name, access.tensor) in UNREAD_AFTERWARDS
    ):
        return access
    return replace(access, skip=1)


@pytest.mark.parametrize(("name", "chain"), _variants(_last_store_skipped))
def test_the_last_store_of_a_running_value_skipped(name: str, chain: Chain) -> None:
    assert disagreements(*CASES[name], chain=chain)


@pytest.mark.parametrize("name", CASES)
def test_a_launch_forgotten(name: str) -> None:
    problem, kernel = CASES[name]
    chain = plan(problem, kernel)
    for n, launch in enumerate(chain.launches):
        if (kernel.algorithm, launch.name) not in UNSEEN_LAUNCHES:
            short = replace(chain, launches=chain.launches[:n] + chain.launches[n + 1 :])
            assert disagreements(problem, kernel, chain=short), launch.name


@pytest.mark.parametrize("name", CASES)
def test_an_access_invented(name: str) -> None:
    problem, kernel = CASES[name]
    chain = plan(problem, kernel)
    main = next(x for x in chain.launches if x.outer not in (Outer.FLAT, Outer.PAIR))
    unread = Tensor(
        "invented", problem.batch, main.domain.heads, main.domain.rows, 1, 4, Role.INPUT
    )
    for extra in (main.accesses[0], Access("invented", Mode.LOAD, Rows.QUERY, Per.PAIR)):
        held = replace(chain, tensors={**chain.tensors, "invented": unread})
        longer = altered(held, main.name, accesses=(*main.accesses, extra))
        with_fill = replace(longer, launches=(_fill(unread, main.domain), *longer.launches))
        assert disagreements(problem, kernel, chain=with_fill)


def _fill(tensor: Tensor, domain: Domain) -> Launch:
    accesses = (Access(tensor.name, Mode.STORE, Rows.QUERY, Per.QUERY),)
    rows = replace(domain, seq_k=1, block_k=1, mask=IntervalMask(), splits=1)
    return Launch("fill_invented", rows, Outer.FLAT, accesses)


@pytest.mark.parametrize("name", ["flash", "flash1 to the letter", "naive", "minimal"])
def test_o_described_as_n_by_n(name: str) -> None:
    problem, kernel = CASES[name]
    chain = plan(problem, kernel)
    wide = replace(chain.tensors["O"], cols=problem.seq_k)
    assert disagreements(
        problem, kernel, chain=replace(chain, tensors={**chain.tensors, "O": wide})
    )


@pytest.mark.parametrize("name", ["flash", "flash rereads", "flash split", "flash1 to the letter"])
@pytest.mark.parametrize("shift", [-1, -3])
def test_a_mask_that_visits_too_few_blocks(name: str, shift: int) -> None:
    problem, kernel = CASES[name]
    chain = plan(problem, kernel)
    domain = next(x for x in chain.launches if x.name == "main").domain
    short = replace(
        domain, mask=replace(domain.mask, offset=domain.mask.offset + shift * domain.block_k)
    )
    assert disagreements(problem, kernel, chain=altered(chain, "main", domain=short))


def test_packed_heads_left_unpacked_in_the_grid() -> None:
    problem, kernel = CASES["flash packed decode"]
    chain = plan(problem, kernel)
    domain = replace(chain.launches[0].domain, heads=problem.heads)
    assert disagreements(problem, kernel, chain=altered(chain, "main", domain=domain))


# Mistakes of the counter: what it sees of an access is altered, and the executing reader is left alone.

Seen = tuple[Domain, Tensor, Access]


@dataclass(frozen=True)
class Bug:
    """`see` alters what the counter is told; the cases are those where that must show."""

    see: Callable[[Domain, Tensor, Access], Seen | int]
    cases: tuple[str, ...]


def _only(
    tensors: str, change: Callable[[Domain, Tensor, Access], Seen | int]
) -> Callable[..., Seen | int]:
    return lambda d, t, a: change(d, t, a) if t.name in tensors.split() else (d, t, a)


COUNT_BUGS = {
    "O counted as N x N": Bug(
        _only("O", lambda d, t, a: (d, replace(t, cols=d.seq_k), a)),
        ("flash", "flash1 to the letter", "naive", "minimal"),
    ),
    "LSE forgotten": Bug(_only("LSE", lambda d, t, a: 0), ("flash", "flash split")),
    "row statistics forgotten": Bug(
        _only("l m", lambda d, t, a: 0), ("flash1 to the letter", "minimal")
    ),
    "K and V read for one query block in all": Bug(
        _only("K V", lambda d, t, a: (d, t, replace(a, per=Per.KEY))),
        ("flash", "flash whole tiles"),
    ),
    "Q read once though it is read again at every pair": Bug(
        _only("Q", lambda d, t, a: (d, t, replace(a, per=Per.QUERY))),
        ("flash rereads", "flash1 to the letter"),
    ),
    "causal ignored": Bug(
        lambda d, t, a: (replace(d, mask=IntervalMask()), t, a),
        ("flash", "flash rereads", "flash1 in fp32"),
    ),
    "mask aligned to the first key": Bug(
        lambda d, t, a: (replace(d, mask=replace(d.mask, offset=0)), t, a),
        ("flash", "flash rereads"),
    ),
    "splits forgotten": Bug(
        lambda d, t, a: (replace(d, splits=1), t, a),
        ("flash split", "flash packed decode", "efficient", "efficient, sums of keys in memory"),
    ),
    "ragged query edge off by one": Bug(
        lambda d, t, a: (replace(d, rows=d.rows + (d.rows % d.block_q > 0)), t, a),
        ("flash", "flash1 in fp32", "naive"),
    ),
    "ragged key edge off by one": Bug(
        lambda d, t, a: (replace(d, seq_k=d.seq_k - 1), t, a),
        ("flash", "flash1 to the letter", "naive"),
    ),
    "whole tiles counted as exact": Bug(
        lambda d, t, a: (d, t, replace(a, edge=Edge.EXACT)),
        ("flash whole tiles", "flash rereads", "efficient"),
    ),
    "exact rows counted as whole tiles": Bug(
        lambda d, t, a: (d, t, replace(a, edge=Edge.WHOLE)),
        ("flash", "flash split", "naive", "math"),
    ),
    "a first load that is skipped is counted": Bug(
        lambda d, t, a: (d, t, replace(a, skip=0)),
        ("flash1 in fp32", "efficient", "efficient in fp32"),
    ),
    "tiles without a visit are counted": Bug(
        lambda d, t, a: (d, t, replace(a, visited_only=False)), ("flash empty rows",)
    ),
    "one head of a group summed": Bug(
        _only("dK_heads dV_heads", lambda d, t, a: (d, t, replace(a, times=1))),
        ("flash", "flash1 in fp32", "naive"),
    ),
    "strided rows counted by the byte": Bug(
        lambda d, t, a: (d, replace(t, strided=False), a), ("flash rereads",)
    ),
    "a shared bias counted once for all heads": Bug(
        _only("bias", lambda d, t, a: t.bytes // d.grid_heads),
        ("flash bias", "naive bias"),
    ),
    "the random state counted by the byte": Bug(
        _only("rng_state", lambda d, t, a: 16), ("flash", "flash bias", "flash1 to the letter")
    ),
    "slopes read once for all CTAs": Bug(
        _only("slopes", lambda d, t, a: (d, t, replace(a, per=Per.LAUNCH))),
        ("flash stored mask", "naive alibi"),
    ),
    "a stored mask counted where an implicit one visits": Bug(
        _only("mask mask_added", lambda d, t, a: (replace(d, mask=IntervalMask(None, 0, 6)), t, a)),
        ("flash stored mask",),
    ),
    "values of one head counted for all": Bug(
        _only("V O", lambda d, t, a: (d, replace(t, cols=t.cols // 2), a)),
        ("uniform", "uniform in two tiles"),
    ),
    "one Q and K counted for every value head": Bug(
        _only("Q K", lambda d, t, a: (d, t, replace(a, times=4))),
        ("uniform", "uniform through memory"),
    ),
    "elements of two bytes counted as four": Bug(
        lambda d, t, a: (d, replace(t, element_bytes=4), a), ("flash", "flash split", "naive")
    ),
}


@pytest.mark.parametrize(
    ("bug", "case"),
    [pytest.param(b, c, id=f"{n}: {c}") for n, b in COUNT_BUGS.items() for c in b.cases],
)
def test_a_count_that_sees_wrongly(bug: Bug, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = counter.access_bytes

    def wrong(domain: Domain, tensor: Tensor, access: Access) -> int:
        seen = bug.see(domain, tensor, access)
        return seen if isinstance(seen, int) else real(*seen)

    monkeypatch.setattr(counter, "access_bytes", wrong)
    assert disagreements(*CASES[case])


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("case", "factor"), [("flash packed decode", 2), ("flash", 0.5)])
def test_k_counted_per_the_wrong_head(
    reader: Any, case: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Per query head where the group is packed in a tile (x 2), per key head where it is not (/ 2)."""
    real = reader.access_bytes

    def wrong(domain: Any, tensor: Tensor, access: Access) -> int:
        return int(real(domain, tensor, access) * (factor if tensor.name == "K" else 1))

    monkeypatch.setattr(reader, "access_bytes", wrong)
    assert disagreements(*CASES[case])


@pytest.mark.parametrize(
    "case", ["flash", "flash backward", "flash rereads", "flash split", "flash1 to the letter"]
)
def test_causal_halved_without_its_diagonal(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = iosim.problem.masks.mask.IntervalMask.key_blocks

    def wrong(*args: Any) -> KeyBlocks:
        blocks = real(*args)
        end = np.maximum(blocks.end - 1, blocks.first)
        return replace(blocks, end=end, end_row=np.minimum(blocks.end_row, end * args[4]))

    monkeypatch.setattr(iosim.problem.masks.mask.IntervalMask, "key_blocks", wrong)
    assert disagreements(*CASES[case])


def test_a_tile_that_looks_at_its_first_row_of_blocks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    real = BlockMask.key_blocks

    def wrong(mask: BlockMask, rows: int, seq_k: int, block_q: int, block_k: int, pack: int) -> Any:
        seen = np.isin(mask.rows, np.arange(0, rows, block_q) // pack // mask.block_q)
        sizes = mask.seq_q, mask.seq_k, mask.block_q, mask.block_k
        fewer = BlockMask.of_pairs(*sizes, mask.rows[seen], mask.indices[seen])
        return real(fewer, rows, seq_k, block_q, block_k, pack)

    monkeypatch.setattr(BlockMask, "key_blocks", wrong)
    assert disagreements(*CASES["flash blocks"])


def test_ctas_past_a_sequence_that_move_whole_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Axis, "block_rows", lambda axis, block: np.full(axis.blocks(block), block))
    assert disagreements(*CASES["flash packed sequences"])


@pytest.mark.parametrize("case", CASES)
def test_directions_swapped_in_the_count(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = property(lambda mode: "write" if mode is Mode.LOAD else "read")
    monkeypatch.setattr(Mode, "direction", swapped)
    assert disagreements(*CASES[case])


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("case", ["flash", "flash split", "flash1 to the letter", "minimal"])
def test_row_statistics_counted_by_the_byte(
    reader: Any, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "tile_bytes", lambda t, a, rows: rows * t.row_bytes)
    assert disagreements(*CASES[case])


@pytest.mark.parametrize("field", ["per_cta", "per_tile", "per_pair", "per_tile_fetch"])
@pytest.mark.parametrize("reader", READERS)
def test_an_overhead_forgotten(reader: Any, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = reader.overhead_bytes
    monkeypatch.setattr(
        reader, "overhead_bytes", lambda x, o, *more: real(x, replace(o, **{field: 0}), *more)
    )
    assert disagreements(*CASES["flash persistent"])
