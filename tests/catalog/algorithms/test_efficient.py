"""The backward of PyTorch's memory-efficient kernel beside an H100's counters of all its builds."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from counter import count
from scripts import ROOT

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.algorithms.efficient import EfficientOptions
from iosim.catalog.algorithms.registry import options_of
from iosim.catalog.libraries import resolve
from iosim.evidence.validate.match import NoModel, match
from iosim.evidence.validate.rows import Row, read
from iosim.hardware.profile import load_profile
from iosim.kernel.launch import Chain, Launch, Outer
from iosim.prediction.predictor import Request
from iosim.prediction.replays import Replays
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem

BUILDS = ROOT / "experiments/measurements/h100_library_builds.csv"
NAME = "pytorch_mem_efficient_backward"
H100 = load_profile("h100-sxm")
ROWS = [row for row in read(BUILDS) if row.implementation == NAME]
with BUILDS.open(newline="") as table:
    SPILLED = {
        int(r["call"]): int(r["local_write"])
        for r in csv.DictReader(table)
        if r["implementation"] == NAME
    }


def chain_of(problem: AttentionProblem, gpu: str = "h100-sxm") -> Chain:
    return plan(problem, resolve("cutlass", problem, load_profile(gpu)))


def main_of(chain: Chain) -> Launch:
    return next(launch for launch in chain.launches if launch.name == "bwd.main")


def backward(**values: object) -> AttentionProblem:
    return AttentionProblem(
        **({"seq_q": 2048, "head_dim": 64, "dtype": "bf16", "passes": "bwd"} | values)
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("head_dim", "block", "columns"),
    [
        # QK^T and dO V^T as deep as the head, in k-steps of 32; dV, dK and dQ in whole tiles as wide as the block
        (80, (128, 128), 2 * 96 + 2 * 128 + 128),
        (64, (64, 64), 2 * 64 + 2 * 64 + 64),
        (40, (64, 64), 2 * 64 + 2 * 64 + 64),
    ],
)
def test_products_take_whole_tiles_of_columns(
    head_dim: int, block: tuple[int, int], columns: int
) -> None:
    main = main_of(chain_of(backward(head_dim=head_dim)))
    assert (main.domain.block_q, main.domain.block_k) == block
    assert main.work.flops_per_pair == 2 * columns


def predicted(row: Row) -> Prediction:
    """The main launch alone, from an empty L2, as it was profiled."""
    case = match([row], H100)
    (chain,) = case.chains
    assert isinstance(chain, Chain)
    return Request(case.problem, case.kernel, H100, chain=chain, method="replay").predict(Replays())


def off(row: Row, quantity: str, value: float) -> float:
    return value / float(row.measured[quantity]) - 1


def test_there_are_all_builds() -> None:
    assert len(ROWS) == 72
    assert sum(not SPILLED[row.call] for row in ROWS) == 40


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.call))
def test_tile_grid_and_counts_are_the_recorded_ones(row: Row) -> None:
    """Reads: to 0.1 % where nothing spills, but under a causal mask with whole tiles, where up to 0.6 % of O and dO is
    found in L1. Writes: to 0.45 %, the bytes of fences differing a little from build to build. Spilled registers: as
    their counter says, to the byte where the wide builds spill, to 0.3 % else; what of them misses L1 is a mean."""
    case = match([row], H100)
    (chain,) = case.chains
    assert isinstance(chain, Chain)
    launch, spilled = main_of(chain), SPILLED[row.call]
    assert f"_{case.kernel.tile_backward}_" in row.facts["kernel"]
    assert row.facts["grid"].startswith(f"({launch.domain.splits}, ")
    counted = count(chain)
    wide = row.number("head_dim") in (192, 256)
    found_in_l1 = row.flag("causal") and "seqaligned" in row.facts["kernel"]
    tolerance = 0.017 if spilled and not wide else 0.006 if found_in_l1 else 0.001
    assert abs(off(row, "l2_read", counted.total("l2", "read"))) < tolerance
    assert abs(off(row, "l2_write", counted.total("l2", "write"))) < 0.0045
    spilled_bytes = counted.total("l2", "write", tensor="spill")
    assert (
        spilled_bytes == spilled
        if wide or not spilled
        else abs(spilled_bytes / spilled - 1) < 0.003
    )


def test_bytes_of_a_call_by_hand() -> None:
    """2,048 x 2,048 tokens of one head, 64 columns of 2 bytes: 32 x 32 pairs of 64 x 64, a CTA a key block."""
    tensor, buffer = 2048 * 64 * 2, 2048 * 64 * 4
    moved_bytes = {(r.launch, r.tensor, r.direction): r.bytes for r in count(chain_of(backward()))}
    assert moved_bytes["bwd.main", "Q", "read"] == 2 * 32 * tensor  # for the scores and for dK
    assert (
        moved_bytes["bwd.main", "dO", "read"] == (2 + 1) * 32 * tensor
    )  # for dP and dV; once by every CTA for D
    assert (
        moved_bytes["bwd.main", "O", "read"] == moved_bytes["bwd.main", "V", "read"] == 32 * tensor
    )
    assert (
        moved_bytes["bwd.main", "K", "read"] == (32 + 1) * tensor
    )  # for dQ at every pair, for the scores once
    assert moved_bytes["bwd.main", "dQ_acc", "read"] == 32 * buffer
    assert moved_bytes["bwd.main", "dQ_acc", "write"] == 31 * buffer  # the last time it is dQ
    assert moved_bytes["bwd.main", "D", "write"] == 32 * 2048 * 4
    assert moved_bytes["bwd.fill", "dQ_acc", "write"] == buffer
    assert moved_bytes["bwd.fill", "locks", "write"] == 32 * 16


@pytest.mark.parametrize(
    ("values", "kilobytes", "grid", "read", "written"),
    [  # drawn at random and counted whole on an H100: what the fill writes; the main launch's bytes in MB
        ({"batch": 19, "heads": 9, "seq_q": 128}, 5_609, 2, 59.186, 14.285),
        (
            {"batch": 15, "heads": 2, "seq_q": 909, "seq_k": 945, "head_dim": 128},
            15_732,
            8,
            706.379,
            286.092,
        ),
    ],
)
def test_whole_calls(
    values: dict[str, int], kilobytes: int, grid: int, read: float, written: float
) -> None:
    chain = chain_of(backward(dtype="fp16", **values))
    fill, main = chain.launches
    assert (fill.name, main.name, main.domain.splits) == ("bwd.fill", "bwd.main", grid)
    counted = count(chain)
    assert round(counted.total("l2", "write", launch="bwd.fill") / 1e3) == kilobytes
    assert abs(counted.total("l2", "read", launch="bwd.main") / 1e6 / read - 1) < 0.006
    assert abs(counted.total("l2", "write", launch="bwd.main") / 1e6 / written - 1) < 0.005


@pytest.mark.parametrize(
    ("values", "read", "written"),
    [  # drawn at random, SM<->L2 MB of the main launch: few queries, one block of keys or several
        (
            {
                "batch": 18,
                "heads": 24,
                "seq_q": 3,
                "dtype": "bf16",
                "causal": True,
                "head_dim": 128,
            },
            3.5,
            None,
        ),
        ({"batch": 21, "heads": 22, "seq_q": 109, "head_dim": 128}, 135.9, None),
        ({"batch": 22, "heads": 29, "seq_q": 37, "dtype": "bf16", "head_dim": 112}, 53.0, None),
        (
            {"batch": 11, "heads": 4, "seq_q": 11, "seq_k": 5587, "dtype": "bf16", "head_dim": 152},
            805.0,
            2072.7,
        ),
        ({"batch": 4, "heads": 28, "seq_q": 9, "dtype": "bf16", "head_dim": 168}, 4.3, 200.0),
        ({"batch": 9, "heads": 4, "seq_q": 129, "dtype": "bf16", "head_dim": 200}, 105.1, 504.5),
    ],
)
def test_spilled_registers_of_few_queries(
    values: dict[str, object], read: float, written: float | None
) -> None:
    """Without locks L1 keeps what a CTA of one visit spills; warps without rows spill less."""
    causal = {"mask": "causal", "offset": 0} if values.pop("causal", False) else {}
    counted = count(chain_of(backward(**({"dtype": "fp16"} | values | causal))))
    assert abs(counted.total("l2", "read", launch="bwd.main") / 1e6 / read - 1) < 0.06
    if written is not None:
        assert abs(counted.total("l2", "write", launch="bwd.main") / 1e6 / written - 1) < 0.03


def test_rows_of_a_whole_call_and_of_its_main_launch(tmp_path: Path) -> None:
    """A call as it was recorded whole, the fill with it; and where the profiler was told to keep the main launch."""
    columns = (
        "call,launch,implementation,batch,heads,kv_heads,seq_q,seq_k,head_dim,causal,dtype,kernel,"
    )
    columns += "hbm_read,hbm_write,l2_read,l2_write"
    facts = f"{NAME},19,9,9,128,128,64,0,float16"
    fill = f"1,1,{facts},vectorized_elementwise_kernel<...>,0,0,0,5609000"
    main = f"{facts},fmha_cutlassB_f16_aligned_64x64_k64_seqaligned_sm80,19772000,539000,59186000,14285000"
    table = tmp_path / "rows.csv"
    table.write_text("\n".join([columns, fill, f"1,2,{main}", f"2,1,{main}"]) + "\n")
    *whole, alone = read(table)
    names = [[launch.name for launch in chain.launches] for chain in match(whole, H100).chains]
    assert names == [["bwd.fill"], ["bwd.main"]]
    assert [launch.name for launch in match([alone], H100).chains[0].launches] == ["bwd.main"]
    other = replace(alone, facts={**alone.facts, "kernel": "vectorized_elementwise_kernel<...>"})
    with pytest.raises(NoModel, match="the model has 2 launches"):
        match([other], H100)


@pytest.mark.parametrize(
    ("values", "splits", "outer"),
    [
        ({"heads": 16}, 32, Outer.KEY),
        ({"batch": 32, "heads": 8}, 32, Outer.KEY),
        ({"batch": 32, "heads": 8, "seq_q": 128}, 1, Outer.HEAD),  # 256 heads, two key blocks
        ({"batch": 32, "heads": 8, "seq_q": 129}, 3, Outer.KEY),
        ({"batch": 15, "heads": 17, "seq_q": 128}, 2, Outer.KEY),  # 255
        ({"heads": 16, "head_dim": 192}, 12, Outer.HEAD),  # 200 // 16
        ({"heads": 4, "head_dim": 192}, 32, Outer.KEY),  # 200 // 4 are more than its blocks
        ({"batch": 8, "heads": 32, "head_dim": 192}, 1, Outer.HEAD),
        (
            {"heads": 16, "head_dim": 192, "dtype": "fp32"},
            32,
            Outer.KEY,
        ),  # in fp32 dK and dV need no buffers
    ],
)
def test_how_many_ctas_share_a_head(values: dict[str, object], splits: int, outer: Outer) -> None:
    chain = chain_of(backward(**values))
    launch = main_of(chain)
    assert (launch.domain.splits, launch.outer) == (splits, outer)
    assert launch.ctas == splits * launch.domain.grid_heads
    assert ("bwd.fill" in [x.name for x in chain.launches]) == (splits > 1)
    assert any(o.name == "locks" for o in launch.overheads) == (splits > 1)


@pytest.mark.parametrize(
    ("gpu", "dtype", "head_dim", "tile", "reads_k"),
    [
        ("h100-sxm", "bf16", 80, "128x128", 33),
        ("a100-sxm-80gb", "fp16", 128, "128x128", 33),
        ("l4", "bf16", 80, "128x64", 33),
        ("l4", "bf16", 128, "64x64", 64),
        ("l4", "fp32", 128, "64x64", 64),
        ("h100-sxm", "fp32", 128, "128x64", 64),
        ("v100-sxm2", "fp16", 64, "64x64", 64),
    ],
)
def test_builds_by_gpu(gpu: str, dtype: str, head_dim: int, tile: str, reads_k: int) -> None:
    """The first build whose shared memory the GPU gives; K stays in shared memory where sums stay in registers."""
    problem = backward(dtype=dtype, head_dim=head_dim)
    kernel = resolve("cutlass", problem, load_profile(gpu))
    assert str(kernel.tile_backward) == tile
    moved_bytes = count(chain_of(problem, gpu)).total("l2", "read", launch="bwd.main", tensor="K")
    blocks = 2048 // kernel.tile_backward.block_q
    wanted = blocks + 1 if reads_k % 2 else 2 * blocks
    assert moved_bytes == wanted * 2048 * head_dim * problem.input_type.bytes


def test_fp32_sums_rows_first() -> None:
    names = [launch.name for launch in chain_of(backward(dtype="fp32", heads=2)).launches]
    assert names == ["bwd.multiply", "bwd.sum", "bwd.transpose", "bwd.fill", "bwd.main"]
    alone = [launch.name for launch in chain_of(backward(dtype="fp32")).launches]
    assert alone == [
        "bwd.multiply",
        "bwd.sum",
        "bwd.fill",
        "bwd.main",
    ]  # one head's rows lie in order already


def test_packed_sequences_are_refused_in_one_line() -> None:
    problem = AttentionProblem(seq_lens=(100, 28), head_dim=64, passes="bwd")
    with pytest.raises(
        InputError, match="seq_lens with passes bwd: the backward of kernel cutlass"
    ) as refused:
        chain_of(problem)
    assert "\n" not in str(refused.value)


def test_hbm_bytes_need_the_walk_that_goes_round() -> None:
    """In fp32 without a mask CTAs begin at query blocks of their own, so that all of a head's sums are in use at once:
    recorded reads are ten times those of CTAs that go through the queries together."""
    (row,) = (r for r in ROWS if r.call == 361)
    prediction = predicted(row)
    assert abs(off(row, "hbm_read", prediction.total("hbm", "read"))) < 0.15
    launches = tuple(replace(x, walks_round=False) for x in prediction.call.chain.launches)
    together = replace(prediction.call.chain, launches=launches)
    played = Request(
        prediction.problem, prediction.kernel, H100, chain=together, method="replay"
    ).predict(Replays())
    assert off(row, "hbm_read", played.total("hbm", "read")) < -0.85


@pytest.mark.slow
def test_hbm_bytes_and_times_are_as_far_off_as_the_docs_say() -> None:
    """By group, dK and dV in registers, through buffers, and in fp32: median errors of HBM reads and times."""
    errors: dict[str, list[tuple[float, float]]] = {"registers": [], "buffers": [], "fp32": []}
    for row in ROWS:
        prediction = predicted(row)
        wide = (row.number("head_dim") or 0) > 128
        group = "fp32" if prediction.problem.dtype == "fp32" else "buffers" if wide else "registers"
        pair = (
            off(row, "hbm_read", prediction.total("hbm", "read")),
            off(row, "time", prediction.time.total_s),
        )
        errors[group].append(pair)
    hbm, times = ({g: [pair[n] for pair in pairs] for g, pairs in errors.items()} for n in (0, 1))
    for group, reads, short, long in (
        ("registers", 0.03, -0.04, 0.03),
        ("buffers", 0.72, -0.13, -0.1),
        ("fp32", 0.12, -0.01, 0.03),
    ):
        assert median(map(abs, hbm[group])) < reads
        assert short < median(times[group]) < long
    assert max(abs(x) for errors in times.values() for x in errors) < 0.19


def test_what_locks_move_is_the_librarys() -> None:
    """The algorithm knows that CTAs take turns; how many bytes that is stands in the library's file."""
    problem = backward(seq_k=4096)
    kernel = resolve("cutlass", problem, H100)
    without = replace(
        kernel,
        options=replace(
            options_of(kernel, EfficientOptions),
            lock_read_bytes=0,
            lock_write_bytes=0,
            lock_write_bytes_per_warp=0,
        ),
    )

    def lock_bytes(launch: Launch) -> list[int]:
        return [o.per_pair for o in launch.overheads if o.name == "locks"]

    # A sector of lock and counter each, before and after; 111 bytes for each of 4 warps, less 204.
    assert lock_bytes(main_of(plan(problem, kernel))) == [128, 4 * 111 - 204]
    assert lock_bytes(main_of(plan(problem, without))) == [0, 0]
