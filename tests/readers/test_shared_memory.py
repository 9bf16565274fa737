"""Bytes at shared memory: hand-worked tables, laws, and the counter of wavefronts."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from statistics import median
from typing import Any

import pytest
from effort import quick_first

import iosim
from iosim.base.data import data_dir
from iosim.evidence.validate import match as matching
from iosim.evidence.validate import rows as tables
from iosim.hardware.profile import load_profile
from iosim.kernel.algorithms import plan
from iosim.kernel.launch import Chain, Launch
from iosim.kernel.libraries import resolve
from iosim.kernel.shared_memory import WAVEFRONT_BYTES, Through, staged
from iosim.readers.count import count, count_shared, staged_bytes, visited_pairs

H200 = load_profile("h200")


def planned(kernel: str, **sizes: Any) -> tuple[Chain, dict[str, Launch]]:
    problem = iosim.AttentionProblem(**sizes)
    chain = plan(problem, resolve(kernel, problem, H200))
    return chain, {launch.name: launch for launch in chain.launches}


def moved(chain: Chain, launch: Launch) -> dict[tuple[str, str], int]:
    rows = count_shared(launch, chain)
    assert rows is not None
    return {(row.tensor, row.direction): row.bytes for row in rows}


def wavefronts(launch: Launch, chain: Chain) -> int | None:
    """Of a launch's loads and stores at shared memory, as its counter has them; None where not known."""
    items = staged(launch, chain)
    if items is None:
        return None
    return sum(n for (*_, way), n in staged_bytes(launch, items).items() if way is Through.LSU) // WAVEFRONT_BYTES


def test_forward_by_hand() -> None:
    """One head of 512 queries and keys, head_dim 64: 4 CTAs of 128 queries, 4 warps, walk 4 blocks of 128 keys each."""
    chain, launches = planned("flash-cu", heads=1, seq_q=512, head_dim=64, dtype="bf16")
    steps, tile, once = 4 * 4, 128 * 64 * 2, 4  # a block of 128 rows has 16 KiB
    assert moved(chain, launches["main"]) == {
        ("Q", "write"): once * tile,  # cp.async, once a tile
        ("Q", "read"): steps * tile,  # each warp its 32 rows, in every step
        ("K", "write"): steps * tile, ("V", "write"): steps * tile,
        ("K", "read"): steps * 4 * tile, ("V", "read"): steps * 4 * tile,  # each of 4 warps fetches all of it
        ("O", "write"): once * tile, ("O", "read"): once * tile,
        # 18 words and idle loads, 2 row tiles x 4 shuffles a step; 24 + 8 + 1 a tile
        ("instructions", "read"): 4 * 128 * (steps * (18 + 8) + once * (24 + 8 + 1)),
    }  # fmt: skip
    lsu = steps * (tile + 8 * tile) + 2 * once * tile + 4 * 128 * (steps * 26 + once * 33)
    assert wavefronts(launches["main"], chain) == lsu // 128


def test_backward_by_hand() -> None:
    """One head of 128 queries and keys, head_dim 64: one CTA of 128 keys, 8 warps, one step of 128 queries."""
    chain, launches = planned("flash-cu", heads=1, seq_q=128, head_dim=64, dtype="bf16", passes="bwd")
    tile = 128 * 64 * 2
    table = moved(chain, launches["bwd.main"])
    assert table["Q", "read"] == table["dO", "read"] == 2 * 8 * tile  # 8 warps, for two products each
    assert table["V", "read"] == tile  # 16 keys a warp
    assert table["K", "read"] == tile + 8 * tile  # and for dQ 8 warps own 16 queries and all columns
    assert table["dS", "write"] == 128 * 128 * 2 == table["dS", "read"]
    assert table["LSE_copy", "read"] == table["D", "read"] == 8 * (128 // 8) * 2 * 128  # a word for each of two rows
    assert table["dK", "read"] == table["dV", "write"] == tile


def test_minimal_by_hand() -> None:
    """A pair of tiles takes 81 x 64 + 96 wavefronts, a key block 64 x 32 more to store K and V."""
    chain, launches = planned("minimal-cu", heads=2, seq_q=256, head_dim=64, dtype="fp32")
    assert wavefronts(launches["main"], chain) == 2 * (8 * 8 * (81 * 64 + 96) + 8 * 64 * 32)


def test_warps_leave_out_what_the_mask_takes_from_all_their_rows() -> None:
    """128 causal queries, 64 keys a block: of the 2 blocks the first two of four warps, rows 0 to 63, need one."""
    sizes: dict[str, Any] = {"heads": 1, "seq_q": 128, "head_dim": 128, "dtype": "bf16"}
    whole, masked = (planned("flash-cu", mask=mask, **sizes) for mask in ("none", "causal"))
    block = 64 * 128 * 2
    assert moved(whole[0], whole[1]["main"])["K", "read"] == 2 * 4 * block
    assert moved(masked[0], masked[1]["main"])["K", "read"] == (2 + 4) * block
    assert moved(masked[0], masked[1]["main"])["K", "write"] == 2 * block  # copied for all


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("kernel", ["flash-cu", "fa2", "naive-cu"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_what_is_staged_whole_moves_no_less_than_at_the_l2(kernel: str, head_dim: int, mask: str) -> None:
    chain, launches = planned(kernel, heads=4, seq_q=1000, head_dim=head_dim, dtype="bf16", mask=mask)
    for launch in launches.values():
        table = moved(chain, launch)
        for name in ("Q", "K", "V"):
            l2 = count(chain).total("l2", "read", launch=launch.name, tensor=name)
            assert table.get((name, "write"), 0) >= l2, (launch.name, name)
            if name != "Q" or launch.domain.splits == 1:  # a split without keys leaves Q where it is
                assert table.get((name, "read"), 0) >= table.get((name, "write"), 0)


def test_wgmma_by_hand() -> None:
    """One head of 1,024 queries, head_dim 128: 8 tiles of 128 rows, two warpgroups, walk 8 blocks of 128 keys. What
    wgmma fetches is no wavefront of the counter: that is O alone."""
    chain, launches = planned("flash-sm90", heads=1, seq_q=1024, head_dim=128, dtype="bf16")
    tile = launches["main"].domain.block_q, launches["main"].domain.block_k
    rows, keys = (128, 128) if launches["main"].tile_ctas == 1 else (256, 128)
    assert tile == (rows, keys)
    steps, row = 1024 // rows * 8, 128 * 2
    assert moved(chain, launches["main"]) == {
        ("Q", "read"): steps * rows * row, ("Q", "write"): 1024 * row,
        ("K", "read"): steps * rows // 64 * keys * row, ("V", "read"): steps * rows // 64 * keys * row,
        ("K", "write"): steps * launches["main"].tile_ctas * keys * row,
        ("V", "write"): steps * launches["main"].tile_ctas * keys * row,
        ("O", "write"): 1024 * row, ("O", "read"): 1024 * row,
    }  # fmt: skip
    assert wavefronts(launches["main"], chain) == 1024 * row // 128


@pytest.mark.parametrize(
    ("head_dim", "mask", "dtype", "p_in_shared"),
    [(64, "none", "bf16", True), (64, "causal", "bf16", False), (96, "causal", "bf16", True),
     (128, "none", "bf16", False), (64, "none", "fp8", False)],
)  # fmt: skip
def test_flash_attention_3_by_hand(head_dim: int, mask: str, dtype: str, p_in_shared: bool) -> None:
    """P goes through shared memory as hopper/tile_size.h says (MmaPV_is_RS); V in fp8 is fetched and stored transposed
    beside its copy and its product's fetches."""
    chain, launches = planned("fa3", heads=2, seq_q=1152, head_dim=head_dim, mask=mask, dtype=dtype)
    main, table = launches["main"], moved(chain, launches["main"])
    steps, width = visited_pairs(main), 1 if dtype == "fp8" else 2
    scores, values = main.domain.block_q * main.domain.block_k, main.domain.block_k * head_dim
    assert table.get(("P", "read")) == table.get(("P", "write")) == (steps * scores * width if p_in_shared else None)
    again = steps * values if dtype == "fp8" else 0
    assert table["V", "write"] == steps * values * width + again
    assert table["V", "read"] == steps * values * width * (main.domain.block_q // 64) + again
    assert table["K", "write"] == steps * values * width


def test_what_is_not_known_is_said() -> None:
    """A split's combine is not described: no bytes of the call, and a note that names the launch."""
    problem = iosim.AttentionProblem(heads=8, seq_q=1, seq_k=8192, head_dim=128, dtype="bf16")
    known, unknown = (iosim.predict(problem, name, "h200") for name in ("flash-cu", "fa3"))
    assert known.smem is not None
    assert unknown.smem is None
    said = "shared-memory bytes are not known: how warps of combine divide operands is not described"
    assert said in unknown.to_dict()["notes"]
    assert not any("shared-memory" in note for note in known.to_dict()["notes"])


def test_an_unknown_layout_moves_nothing_that_is_told() -> None:
    chain, launches = planned("cudnn", heads=2, seq_q=512, head_dim=64, dtype="bf16")
    assert count_shared(launches["main"], chain) is None
    assert wavefronts(launches["main"], chain) is None


def measured(name: str, gpu: str) -> Iterator[tuple[str, float]]:
    """(launch, predicted over counted wavefronts) of every row that has both."""
    path = data_dir("kernels") / "measurements" / name
    with path.open(newline="") as file:
        counted = {(r["call"], r["launch"]): r["smem_wavefronts"] for r in csv.DictReader(file)}
    for _, call in groupby(tables.read(path), key=lambda row: row.call):
        try:
            case = matching.match(list(call), load_profile(gpu))
        except matching.NoModel:
            continue
        for row, chain in zip(case.rows, case.chains, strict=True):
            there = counted[str(row.call), str(row.launch)]
            if there and not isinstance(chain, str):
                (launch,) = chain.launches
                if told := wavefronts(launch, chain):
                    yield f"{row.implementation} {launch.name}", told / int(there) - 1


# launch -> rows, and the most that the median error, and the share of rows beyond 2 %, may be
OWN = {
    "flash_fwd main": (613, 0.010, 0.15), "flash_bwd bwd.main": (36, 0.003, 0.0), "flash_bwd bwd.dq": (8, 0.002, 0.0),
    "minimal main": (6, 0.0001, 0.0), "naive scores": (11, 0.004, 0.0), "naive values": (11, 0.002, 0.0),
    "naive softmax": (11, 0.03, 0.8),
}  # fmt: skip
LIBRARY = {"pytorch_flash main": (51, 0.017, 0.45)}


@pytest.mark.parametrize(
    ("name", "gpu", "expected"),
    quick_first([("h100_random.csv", "h100", LIBRARY), ("h200_iosim_kernels.csv", "h200", OWN)], 1),
)
def test_wavefronts_agree_with_the_counter(name: str, gpu: str, expected: dict[str, tuple[int, float, float]]) -> None:
    errors: dict[str, list[float]] = defaultdict(list)
    for what, error in measured(name, gpu):
        errors[what].append(abs(error))
    for what, (rows, middle, beyond) in expected.items():
        assert len(errors[what]) == rows, what
        assert median(errors[what]) <= middle, what
        assert sum(e > 0.02 for e in errors[what]) <= beyond * rows, what
