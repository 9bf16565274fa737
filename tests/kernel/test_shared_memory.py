"""Bytes at shared memory: hand-worked tables, laws, and the counter of wavefronts."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import Any

import pytest
from counter import count
from effort import quick_first
from scripts import load_script

import iosim
from iosim.base.records import replace
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.launch import Chain, Launch
from iosim.kernel.overrides import Overrides
from iosim.readers.staged import count_shared, wavefront_bytes

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
    """Of one launch of a chain; None where not known."""
    total_bytes = wavefront_bytes(replace(chain, launches=(launch,)))
    return None if total_bytes is None else total_bytes // 128


def test_forward_by_hand() -> None:
    """One head of 512 queries and keys, head_dim 64: 4 CTAs of 128 queries, 4 warps, walk 4 blocks of 128 keys each."""
    chain, launches = planned("flash-cu", heads=1, seq_q=512, head_dim=64, dtype="bf16")
    # a block of 128 rows has 16 KiB
    steps = 4 * 4
    tile = 128 * 64 * 2
    once = 4
    assert moved(chain, launches["main"]) == {
        ("Q", "write"): once * tile,  # cp.async, once a tile
        ("Q", "read"): steps * tile,  # each warp its 32 rows, in every step
        ("K", "write"): steps * tile,
        ("V", "write"): steps * tile,
        ("K", "read"): steps * 4 * tile,
        ("V", "read"): steps * 4 * tile,  # each of 4 warps fetches all of it
        ("O", "write"): once * tile,
        ("O", "read"): once * tile,
        # 18 words and idle loads, 2 row tiles x 4 shuffles a step; 24 + 8 + 1 a tile
        ("instructions", "read"): 4 * 128 * (steps * (18 + 8) + once * (24 + 8 + 1)),
    }
    lsu = steps * (tile + 8 * tile) + 2 * once * tile + 4 * 128 * (steps * 26 + once * 33)
    assert wavefronts(launches["main"], chain) == lsu // 128


def test_backward_by_hand() -> None:
    """One head of 128 queries and keys, head_dim 64: one CTA of 128 keys, 8 warps, one step of 128 queries."""
    chain, launches = planned(
        "flash-cu", heads=1, seq_q=128, head_dim=64, dtype="bf16", passes="bwd"
    )
    tile = 128 * 64 * 2
    table = moved(chain, launches["bwd.main"])
    assert (
        table["Q", "read"] == table["dO", "read"] == 2 * 8 * tile
    )  # 8 warps, for two products each
    assert table["V", "read"] == tile  # 16 keys a warp
    assert (
        table["K", "read"] == tile + 8 * tile
    )  # and for dQ 8 warps own 16 queries and all columns
    assert table["dS", "write"] == 128 * 128 * 2 == table["dS", "read"]
    assert (
        table["LSE_copy", "read"] == table["D", "read"] == 8 * (128 // 8) * 2 * 128
    )  # a word for each of two rows
    assert table["dK", "read"] == table["dV", "write"] == tile


FRAGMENT_FREE = ("instructions", "read")


def test_wavefronts_without_operands_by_hand() -> None:
    """Two blocks of 128 queries and of 128 keys, head_dim 64; a wavefront is 128 bytes."""
    sizes = {"heads": 1, "seq_q": 256, "head_dim": 64, "dtype": "bf16"}
    chain, launches = planned("flash-cu", **sizes, passes="bwd")
    by_launch = {name: moved(chain, launch)[FRAGMENT_FREE] for name, launch in launches.items()}
    assert by_launch == {
        "bwd.fill": 0,
        "bwd.dot": 128 * 256 * (1 + 5),  # a word and five shuffles a row
        "bwd.main": 128 * 8 * (4 * 12 + 2 * (19 + 1)),  # 8 warps: four pairs of blocks, two of keys
        "bwd.convert": 128 * 256 * 64 // (8 * 32),  # an idle load to 8 values of each of 32 threads
    }
    problem = iosim.AttentionProblem(heads=1, seq_q=64, seq_k=4096, head_dim=64, dtype="bf16")
    split = plan(problem, resolve("flash-cu", problem, H200, Overrides(splits=4)))
    (combine,) = (launch for launch in split.launches if launch.name == "combine")
    assert moved(split, combine)[FRAGMENT_FREE] == 128 * 64  # one a row


def test_naive_by_hand() -> None:
    """128 queries and keys, head_dim 64. A product of 64 x 64 x 32 takes 128 wavefronts of stores, and 8 loads to each
    16 products of a warp's 32 threads: 64 x 64 x 32 / (16 x 32) x 8 = 2,048."""
    chain, launches = planned("naive-cu", heads=1, seq_q=128, head_dim=64, dtype="fp16")
    parts = 2 * 2 * 2  # of 64 x 64 x 32 in 128 x 128 x 64
    for name, letters in (("scores", "QK"), ("values", "PV")):
        table = moved(chain, launches[name])
        assert {tensor for tensor, _ in table} == {*letters}
        assert sum(table.values()) == pytest.approx(parts * 128 * (128 + 2048), abs=2)
        assert table[letters[0], "read"] == table[letters[1], "read"]
    # A row of 128 scores twice in and twice out as fp32; two reductions of 8 warps: five shuffles, a store, two fetches
    # of two wavefronts each; and one wavefront more.
    assert moved(chain, launches["softmax"]) == {
        ("S", "read"): 2 * 128 * 128 * 4,
        ("S", "write"): 2 * 128 * 128 * 4,
        FRAGMENT_FREE: 128 * 128 * 8 * (1 + 2 * (5 + 1 + 2 * 2)),
    }


def test_minimal_by_hand() -> None:
    """A pair of tiles takes 81 x 64 + 96 wavefronts, a key block 64 x 32 more to store K and V."""
    chain, launches = planned("minimal-cu", heads=2, seq_q=256, head_dim=64, dtype="fp32")
    assert wavefronts(launches["main"], chain) == 2 * (8 * 8 * (81 * 64 + 96) + 8 * 64 * 32)


def test_a_thread_a_row_asks_one_bank_for_32_words() -> None:
    """flash-attention-minimal of 16 x 12 x 512 x 64, to the last wavefront of an H200's profiler. A pair of tiles takes
    2 x 64 x 32 x 33 + 32 x 32 for loads."""
    chain, launches = planned("minimal", batch=16, heads=12, seq_q=512, head_dim=64, dtype="fp32")
    table = moved(chain, launches["main"])
    loads = sum(size for (_, way), size in table.items() if way == "read") // 128
    stores = sum(size for (_, way), size in table.items() if way == "write") // 128
    assert loads == 6_694_109_184 == 16 * 12 * 16 * 16 * (2 * 64 * 32 * 33 + 32 * 32)
    assert stores == 213_909_504


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
def test_what_is_staged_whole_moves_no_less_than_at_the_l2(
    kernel: str, head_dim: int, mask: str
) -> None:
    chain, launches = planned(
        kernel, heads=4, seq_q=1000, head_dim=head_dim, dtype="bf16", mask=mask
    )
    for launch in launches.values():
        table = moved(chain, launch)
        for name in ("Q", "K", "V"):
            l2 = count(chain).total("l2", "read", launch=launch.name, tensor=name)
            assert table.get((name, "write"), 0) >= l2, (launch.name, name)
            if (
                name != "Q" or launch.domain.splits == 1
            ):  # a split without keys leaves Q where it is
                assert table.get((name, "read"), 0) >= table.get((name, "write"), 0)


def test_wgmma_by_hand() -> None:
    """One head of 1,024 queries, head_dim 128: 8 tiles of 128 rows, two warpgroups, walk 8 blocks of 128 keys. The
    counter has what wgmma fetches, four shuffles of each warp in a step and once a tile, and O's stores; no copies."""
    chain, launches = planned("flash-sm90", heads=1, seq_q=1024, head_dim=128, dtype="bf16")
    tile = launches["main"].domain.block_q, launches["main"].domain.block_k
    rows, keys = (128, 128) if launches["main"].tile_ctas == 1 else (256, 128)
    assert tile == (rows, keys)
    steps, row = 1024 // rows * 8, 128 * 2
    assert moved(chain, launches["main"]) == {
        ("Q", "read"): steps * rows * row,
        ("Q", "write"): 1024 * row,
        ("K", "read"): steps * rows // 64 * keys * row,
        ("V", "read"): steps * rows // 64 * keys * row,
        ("K", "write"): steps * launches["main"].tile_ctas * keys * row,
        ("V", "write"): steps * launches["main"].tile_ctas * keys * row,
        ("O", "write"): 1024 * row,
        ("O", "read"): 1024 * row,
        ("instructions", "read"): (steps + 1024 // rows) * rows // 16 * 4 * 128,
    }
    fetched = steps * rows * row + 2 * steps * rows // 64 * keys * row
    shuffled = (steps + 1024 // rows) * rows // 16 * 4
    assert wavefronts(launches["main"], chain) == (fetched + 1024 * row) // 128 + shuffled


@pytest.mark.parametrize(
    ("head_dim", "mask", "dtype", "p_in_shared"),
    [
        (64, "none", "bf16", True),
        (64, "causal", "bf16", False),
        (96, "causal", "bf16", True),
        (128, "none", "bf16", False),
        (64, "none", "fp8", False),
    ],
)
def test_flash_attention_3_by_hand(head_dim: int, mask: str, dtype: str, p_in_shared: bool) -> None:
    """P goes through shared memory as hopper/tile_size.h says (MmaPV_is_RS); V in fp8 is fetched and stored transposed
    beside its copy and its product's fetches."""
    chain, launches = planned("fa3", heads=2, seq_q=1152, head_dim=head_dim, mask=mask, dtype=dtype)
    main = launches["main"]
    table = moved(chain, launches["main"])
    steps, width = main.visited_pairs, 1 if dtype == "fp8" else 2
    scores = main.domain.block_q * main.domain.block_k
    values = main.domain.block_k * head_dim
    assert (
        table.get(("P", "read"))
        == table.get(("P", "write"))
        == (steps * scores * width if p_in_shared else None)
    )
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
    message = (
        "shared-memory bytes are not known: how warps of combine divide operands is not described"
    )
    assert message in unknown.to_dict()["notes"]
    assert not any("shared-memory" in note for note in known.to_dict()["notes"])


def test_an_unknown_layout_moves_nothing_that_is_told() -> None:
    chain, launches = planned("flex", heads=2, seq_q=512, head_dim=64, dtype="bf16")
    assert count_shared(launches["main"], chain) is None
    assert wavefronts(launches["main"], chain) is None


def test_cudnn_decodes_by_another_unit_whose_fragments_are_not_described() -> None:
    decoding: dict[str, Any] = {
        "heads": 8,
        "seq_q": 1,
        "seq_k": 8192,
        "head_dim": 128,
        "dtype": "bf16",
    }
    chain, launches = planned("cudnn", **decoding)
    assert wavefronts(launches["main"], chain) is None
    chain, launches = planned("cudnn", heads=1, seq_q=256, head_dim=64, dtype="bf16")
    q_k_v = 128 * 64 * 2 * (1 + 2 + 2)  # of a step: Q once, K and V for each of two warpgroups
    assert (
        wavefronts(launches["main"], chain) == (4 * q_k_v + 256 * 64 * 2) // 128 + (4 + 2) * 8 * 4
    )


SIZES: dict[str, Any] = {"heads": 1, "seq_q": 128, "head_dim": 64, "dtype": "bf16"}


def test_memory_efficient_by_hand() -> None:
    """One head of 128 queries and keys: 2 tiles of 64 queries walk 2 blocks of 64 keys; 4 warps have 32 x 32 scores."""
    chain, launches = planned("cutlass", **SIZES)
    steps, tiles, block = 4, 2, 64 * 64 * 2
    in_step = 4 * (2 + 3) + 4 * (4 * (8 + 1 + 2 + 1) + 1 + 2 + 4 + 5 + 2 + 4) + 4 * (2 + 3)
    in_tile = 4 * (16 - 1 - 4) + 64 // 8 + 4 * 8
    assert moved(chain, launches["main"]) == {
        ("Q", "write"): steps * block,
        ("Q", "read"): steps * 2 * block,  # each warp 32 rows: two warps fetch the same
        ("K", "write"): steps * block,
        ("K", "read"): steps * 2 * block,
        ("V", "write"): steps * block,
        ("V", "read"): steps * 2 * block,
        ("P", "write"): steps * block,
        ("P", "read"): steps * 2 * block,
        ("O", "write"): tiles * 2 * block,
        ("O", "read"): tiles * 2 * block,  # in fp32
        ("instructions", "read"): 128 * (steps * in_step + tiles * in_tile),
    }


def instructions(kernel: str, **sizes: Any) -> float:
    """Wavefronts that hold no operand."""
    chain, launches = planned(kernel, **SIZES | sizes)
    return moved(chain, launches["main"])["instructions", "read"] / 128


def test_copies_past_the_end_write_zeros() -> None:
    """Of a block of 64 queries and of 64 keys a line of 128 bytes holds two rows of 32 columns, or one of 64 of V."""
    whole = instructions("cutlass", seq_q=64, seq_k=64)
    assert (
        instructions("cutlass", seq_q=60, seq_k=64) - whole == 2 * 4 / 2
    )  # Q, two turns of 32 columns
    assert instructions("cutlass", seq_q=64, seq_k=50) - whole == 2 * 14 / 2 + 14  # K and V
    assert (
        instructions("cutlass", seq_q=64, seq_k=64, head_dim=56) - whole == 32 + 32 + 64
    )  # in each row of all three


@pytest.mark.parametrize(("dtype", "head_dim"), [("bf16", 256), ("fp32", 128)])
def test_a_product_whose_stages_do_not_fit_copies_in_its_loop(dtype: str, head_dim: int) -> None:
    """Idle loads come with each turn; the last turn fetches the next one's first fragments; P in fp32 conflicts."""
    chain, launches = planned("cutlass", **SIZES | {"head_dim": head_dim, "dtype": dtype})
    main, table, width = (
        launches["main"],
        moved(chain, launches["main"]),
        2 if dtype == "bf16" else 4,
    )
    steps = main.visited_pairs
    warps = main.resources.threads // 32
    turns = head_dim // 32
    assert (
        table["Q", "read"] == table["K", "read"] == steps * warps * 32 * 32 * width * (turns + 0.25)
    )
    assert table["P", "read"] == table["V", "read"] * (1 if dtype == "bf16" else 2)
    assert instructions("cutlass", head_dim=head_dim, dtype=dtype) > steps * warps * 9 * turns


def test_a_mask_tensor_passes_through_shared_memory() -> None:
    chain, launches = planned("cutlass", **SIZES | {"bias": "full"})
    table = moved(chain, launches["main"])
    (name,) = {tensor for tensor, _ in table} - {"Q", "K", "V", "P", "O", "instructions"}
    assert table[name, "write"] == 4 * 64 * 64 * 2
    assert table[name, "read"] == 4 * 4 * 32 * 8 * 128  # eight rows lie in one bank


@pytest.mark.parametrize(
    ("sizes", "gpu"),
    [({"dropout": 0.1}, "h200"), ({"passes": "bwd"}, "h200"), ({"dtype": "fp16"}, "v100")],
)
def test_what_of_the_memory_efficient_kernel_is_not_described(
    sizes: dict[str, Any], gpu: str
) -> None:
    problem = iosim.AttentionProblem(**SIZES | sizes)
    assert iosim.predict(problem, "cutlass", gpu).smem is None


def test_flash_attention_2_backward_by_hand() -> None:
    """One head of 128 queries and keys, head_dim 128: a tile of 128 keys, 2 steps of 64 queries. Of 8 warps two divide
    the queries of the scores, four the keys of dK and dV, two the queries of dQ."""
    chain, launches = planned("fa2", **SIZES | {"head_dim": 128, "passes": "bwd"})
    queries, keys, scores, steps = 64 * 128 * 2, 128 * 128 * 2, 64 * 128 * 2, 2
    table = moved(chain, launches["bwd.main"])
    assert {tensor: n for tensor, n in table.items() if not tensor[0].startswith("dO")} == {
        ("Q", "write"): steps * queries,
        ("Q", "read"): steps * (4 + 4) * queries,
        ("K", "write"): keys,
        ("K", "read"): steps * (2 + 2) * keys,
        ("V", "write"): keys,
        ("V", "read"): steps * 2 * keys,
        ("P", "write"): steps * scores,
        ("P", "read"): steps * 2 * scores,
        ("dS", "write"): steps * scores,
        ("dS", "read"): steps * (2 + 4) * scores,
        ("dK", "write"): keys,
        ("dK", "read"): keys,
        ("dV", "write"): keys,
        ("dV", "read"): keys,
        ("instructions", "read"): 8 * 128 * (steps * 2 * 3 + 3),
    }


def test_a_build_of_96_columns_holds_v_unless_it_drops() -> None:
    for dropout, times in ((0.0, 1), (0.1, 2)):
        chain, launches = planned(
            "fa2", **SIZES | {"head_dim": 96, "passes": "bwd", "dropout": dropout}
        )
        assert moved(chain, launches["bwd.main"])["V", "read"] == times * 2 * 128 * 96 * 2


# table -> launch -> rows, and the most that the median error, and the share of rows beyond a limit, may be
OWN = {
    "flash_fwd main": (613, 0.010, 0.02, 0.15), "flash_bwd bwd.main": (36, 0.003, 0.02, 0.0),
    "flash_bwd bwd.dq": (8, 0.002, 0.02, 0.0), "minimal main": (6, 0.0001, 0.02, 0.0),
    "naive scores": (11, 0.004, 0.02, 0.0), "naive values": (11, 0.002, 0.02, 0.0),
    "naive softmax": (11, 0.03, 0.02, 0.8),
}  # fmt: skip
DRAWN = {
    "pytorch_flash main": (51, 0.017, 0.02, 0.45),
    "pytorch_mem_efficient main": (31, 0.035, 0.05, 0.2),
    "pytorch_flash_backward bwd.main": (20, 0.03, 0.05, 0.4),
    "cudnn main": (33, 0.03, 0.05, 0.3),
}
BUILDS = {"pytorch_flash_backward bwd.main": (121, 0.02, 0.05, 0.03)}


@pytest.mark.parametrize(
    ("table", "expected"),
    quick_first(
        [
            ("kernels/measurements/h100_random.csv", DRAWN),
            ("experiments/measurements/h100_library_builds.csv", BUILDS),
            ("kernels/measurements/h200_iosim_kernels.csv", OWN),
        ],
        1,
    ),
)
def test_wavefronts_agree_with_the_counter(
    table: str, expected: dict[str, tuple[int, float, float, float]]
) -> None:
    errors: dict[str, list[float]] = defaultdict(list)
    for tensor, error in load_script("benchmarks/shared_memory.py").launches(table):
        if error is not None:
            errors[tensor].append(abs(error))
    for tensor, (rows, middle, limit, beyond) in expected.items():
        assert len(errors[tensor]) == rows, tensor
        assert median(errors[tensor]) <= middle, tensor
        assert sum(e > limit for e in errors[tensor]) <= beyond * rows, tensor


@pytest.mark.slow
def test_the_page_shows_these_errors() -> None:
    script = load_script("benchmarks/shared_memory.py")
    errors, _ = script.errors()
    assert f"{script.BEGIN}\n{script.table(errors)}\n{script.END}" in script.PAGE.read_text(
        encoding="utf-8"
    )
