"""cuDNN on Hopper: its forward as its public source has it, its backward at every head dimension, TMA's edges."""

from __future__ import annotations

import csv
import re

import pytest
from scripts import measurements

from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.catalog.libraries.sdpa import choose, order, why_not_cudnn
from iosim.hardware.profile import load_profile
from iosim.kernel.launch import Edge
from iosim.kernel.residency import residency
from iosim.kernel.schedule import Direction, Order, Scheduler, Start
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem

HOPPERS = ("h100", "h100-pcie", "h200", "h20", "h800")


def problem(**fields: object) -> AttentionProblem:
    return AttentionProblem(
        **{"seq_q": 2048, "heads": 32, "head_dim": 128, "dtype": "bf16", **fields}
    )  # type: ignore[arg-type]


def rows(table: str) -> list[dict[str, str]]:
    with measurements(table).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("gpu", HOPPERS)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("passes", ["bwd", "fwd+bwd"])
def test_the_backward_fits_every_hopper(gpu: str, head_dim: int, passes: str) -> None:
    prediction = predict(problem(head_dim=head_dim, passes=passes), "cudnn", gpu, method="bounds")
    main = next(launch for launch in prediction.chain.launches if launch.name == "bwd.main")
    # 384 threads x 168 registers = 64,512 of an SM's 65,536: one CTA an SM. setmaxnreg shares them out anew later.
    assert main.resources.registers == 168
    assert residency(main, prediction.profile).ctas_per_sm == 1


def test_registers_of_recorded_backwards() -> None:
    """Every main launch of cuDNN's backward that was profiled has the catalog's threads and registers."""
    recorded = [
        r
        for table in ("h200_library_kernels.csv", "h200_chain_launches.csv")
        for r in rows(table)
        if r["implementation"].startswith("cudnn") and "(384, 1, 1)" in r["block"]
    ]
    assert len(recorded) > 50
    assert {int(float(r["registers"])) for r in recorded} == {168}


def test_the_forward_is_the_public_kernel() -> None:
    """cudnn-frontend @df73764a, sm90_sdpa_prefill_engine.h and d128_fprop_kernel.h."""
    kernel = resolve(
        "cudnn", problem(), predict(problem(), "cudnn", "h200", method="bounds").profile
    )
    tile_m, tile_n = (
        64,
        128,
    )  # TILE_M_1, TILE_N_1; two warpgroups share a CTA's rows (q_row_coord *= TILE_M_1 * 2)
    assert (kernel.tile.block_q, kernel.tile.block_k) == (2 * tile_m, tile_n)
    assert kernel.tile.stages == 2  # BUFFERS_K_1, BUFFERS_V_1
    assert kernel.cta_threads == 384  # __launch_bounds__(384, 1)
    assert kernel.registers == 65536 // 384 // 8 * 8 == 168
    assert kernel.shared_memory_bytes == 227 * 1024  # KernelSpec, d = 128
    s = kernel.schedule
    # tile_id = (batch x heads + head) x query tiles + query tile, ascending; an atomicAdd gives the next one.
    assert (s.order, s.start, s.scheduler) == (Order.QUERY, Start.LIGHT_FIRST, Scheduler.DYNAMIC)
    assert s.direction is Direction.ASCENDING  # for (kv_loop = left; kv_loop < right; kv_loop++)
    assert not kernel.writes_lse
    assert kernel.persistent_ctas == 132  # min(SMs, tiles)


@pytest.mark.parametrize("seq", [128, 512, 2048])
def test_one_word_is_asked_for_every_tile_and_once_more_by_every_cta(seq: int) -> None:
    chain = plan(
        problem(seq_q=seq),
        resolve("cudnn", problem(seq_q=seq), predict(problem(), "cudnn", "h200").profile),
    )
    main = chain.launches[0]
    tiles = 32 * -(-seq // 128)
    written = next(o for o in main.overheads if o.name == "tile_counter" and o.mode == "reduce")
    assert main.work_tiles == tiles
    assert main.ctas == min(132, tiles)
    assert written.per_tile_fetch * (main.work_tiles + main.ctas) == 32 * (tiles + min(132, tiles))


def test_boxes_past_the_end_cost_the_sm_whole_rows() -> None:
    """The source's tensor maps end with the sequence, and still the counters see whole tiles: rows that TMA fills with
    zeros cross from the L2 as others do, and come from no memory."""
    recorded = rows("h200_boxes.csv")
    assert {int(r["l2_read"]) for r in recorded} == {
        100 * 128 * 64 * 2
    }  # CTAs x rows x columns x bytes
    for r in recorded:
        inside = 4 * int(r["rows_inside"]) * 64 * 2  # bytes of 4 heads that are there
        assert abs(int(r["hbm_read"]) - inside) < 6000
    kernel = resolve(
        "cudnn", problem(), predict(problem(), "cudnn", "h200", method="bounds").profile
    )
    assert kernel.edge_q is kernel.edge_k is Edge.WHOLE
    # Recorded: 2 x 16 heads, 1,000 tokens, head_dim 64. 8 query tiles of 128 rows; each reads 8 key tiles of K and V.
    read = 2 * 16 * (8 * 128 + 8 * 2 * 8 * 128) * 64 * 2 + 32 * (2 * 16 * 8 + 132)
    row = next(r for r in rows("h200_library_kernels.csv") if r["call"] == "130")
    assert round(read, -3) == int(float(row["l2_read"]))
    case = problem(batch=2, heads=16, seq_q=1000, head_dim=64)
    assert predict(case, "cudnn", "h200", method="bounds").total("l2", "read") == read


def test_the_closed_engine_runs_the_public_member() -> None:
    names = {r["kernel"] for r in rows("h200_chain_launches.csv") if "fprop" in r["kernel"]}
    assert names
    for name in names:
        assert re.search(r"knob_7_64x128x128_4x1x1_cga1x1x1", name), name


@pytest.mark.parametrize(
    ("gpu", "version", "backend"),
    [
        ("h100", 91900, "cudnn"),
        ("h200", 91600, "cudnn"),
        ("h100", 91500, "flash"),
        ("b200", 92000, "flash"),
    ],
)
def test_pytorch_gives_wide_heads_to_cudnn_on_hopper(gpu: str, version: int, backend: str) -> None:
    profile = load_profile(gpu)
    assert choose(problem(head_dim=256), profile, order(profile, version), version)[0] == backend
    assert (
        why_not_cudnn(problem(head_dim=256), profile, version=90900)
        == "cuDNN takes head_dim up to 128"
    )
    assert (
        why_not_cudnn(problem(head_dim=264), load_profile("h100"), version=92000)
        == "cuDNN takes head_dim up to 256"
    )
    masked = problem(head_dim=256, bias="full", bias_shared="both")
    assert (
        choose(masked, profile, order(profile, version), version)[0]
        == ("efficient", "cudnn")[backend == "cudnn"]
    )


def test_what_a_bias_costs_the_widest_build() -> None:
    """A Gemma 3's forward on an H100, 2 x 4 heads of 256 columns and 4,096 tokens with a mask: 266 bytes a thread and
    pair of blocks leave the SM beside the output. Narrower builds, and those without a bias, keep all in registers."""
    wide = problem(batch=2, heads=4, seq_q=4096, head_dim=256, bias="full", bias_shared="heads")
    h100 = load_profile("h100")
    main = plan(wide, resolve("cudnn", wide, h100)).launches[-1]
    pairs = 8 * 32 * 32
    bare = predict(
        problem(batch=2, heads=4, seq_q=4096, head_dim=256), "cudnn", h100, method="bounds"
    ).total("l2", "write")
    assert (
        predict(wide, "cudnn", h100, method="bounds").total("l2", "write") - bare
        == 266 * 384 * pairs
    )
    assert main.work.spill is not None
    for other in (wide.with_(head_dim=128, head_dim_v=128), wide.with_(head_dim=64, head_dim_v=64)):
        assert resolve("cudnn", other, h100).spill is None


def test_the_widest_backward_has_fewer_keys() -> None:
    """The sums of dK and dV, 128 x 256 fp32 each, would be all of an SM's registers: 64 keys."""
    for head_dim, keys in ((64, 128), (128, 128), (136, 64), (256, 64)):
        tile = resolve(
            "cudnn", problem(head_dim=head_dim, passes="bwd"), load_profile("h200")
        ).tile_backward
        assert (tile.block_q, tile.block_k) == (64, keys)


@pytest.mark.parametrize(("keys", "edge"), [(49, Edge.EXACT), (56, Edge.WHOLE)])
@pytest.mark.parametrize("passes", ["fwd", "bwd"])
def test_a_bias_whose_rows_tma_cannot_step_over_has_no_whole_boxes(
    keys: int, edge: Edge, passes: str
) -> None:
    """Rows of 49 bf16 lie 98 bytes apart, of 56 lie 112: TMA's strides are multiples of 16 bytes."""
    p = problem(batch=64, seq_q=keys, heads=3, head_dim=32, bias="full", passes=passes)
    launches = plan(p, resolve("cudnn", p, load_profile("h100"))).launches
    main = next(x for x in launches if {"bias", "K"} <= {a.tensor for a in x.accesses})
    assert {a.edge for a in main.accesses if a.tensor == "bias"} == {edge}
    # K and V have rows of 64 bytes, whichever the number of keys.
    assert {a.edge for a in main.accesses if a.tensor == "K"} == {Edge.WHOLE}
