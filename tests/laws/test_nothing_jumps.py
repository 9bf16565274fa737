"""Nothing jumps: where a problem grows by less than 2 %, bytes and time move by less than 25 %, and more work never
takes less time or fewer compulsory bytes; a better GPU takes no longer.

What may jump, and why. Each reason is a number that is computed on both sides, and allows as much as it moves itself:

- Another kernel (`another_kernel`). The library takes another tile, number of splits, packing, build for uneven
  lengths, or other launches: its rule book says so.
- Whole tiles (`tiles_grow`). A ragged tile costs what a whole one costs: one more query or key block, of few, adds its
  rows and its visits to SM<->L2 bytes.
- Whole rounds (`rounds_grow`). One more tile than SMs, or than places for CTAs, is one more round; one more key block
  is one more step of the longest tile.
- Dirty lines that stay (`stays_dirty`). Writes are counted when lines leave the L2; what is still there at the end of
  a call is not.
- An L2 that only just holds what is in use (`between_l2s`). Where least recently used lines go first, a working set a
  few per cent larger misses nearly everywhere (measured: replay/test_scan.py). Then an L2 of a size that is a few
  per cent off reads what the neighbour reads. Two causes move the working set without more tokens to speak of:
  heads that begin at the same place of a page of memory use the same sets (`test_traffic_laws.py` shifts them), and a
  block of one row costs each CTA a step in which it moves nothing, so that less is in use at a time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from effort import examples, some
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from iosim.base.errors import InputError
from iosim.catalog.libraries import entry_names
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.launch import Launch
from iosim.prediction.predictor import predict
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.l2 import model
from iosim.readers.replay.play import Play
from iosim.readers.timing.makespan import steps_per_tile

MOST = 1.25
SLOWER = 0.97
FLOOR_BYTES = 1 << 18
"""Lines, sectors and counters of a launch, which come in whole ones."""
L2_SHARES = (0.85, 0.92, 1.09, 1.18)


def another_kernel(before: Prediction, after: Prediction) -> bool:
    """Whether the library takes another kernel, but for what its notes say, or the matrix library another tile; or one
    side alone moves some tensor: a second key block is the first for which FlashAttention-1 keeps partial results."""
    first, other = (replace(p.kernel, notes=()) for p in (before, after))
    moves, more = (
        {(r.launch, r.tensor, r.direction) for r in p.call.counted if r.bytes}
        for p in (before, after)
    )
    tiles, others = (
        [(x.domain.block_q, x.domain.block_k) for x in p.chain.launches] for p in (before, after)
    )
    return first != other or moves != more or tiles != others


def pairs_of(launch: Launch) -> int:
    """Visits of all tiles of a (batch, head)."""
    return int(launch.domain.visited.count.sum())


def tiles_grow(first: Launch, other: Launch) -> float:
    """How much more work tiles, or visits of them, there are."""
    heads = other.domain.grid_heads / first.domain.grid_heads
    visits = heads * pairs_of(other) / max(1, pairs_of(first))
    return max(1.0, visits, other.work_tiles / max(1, first.work_tiles))


def longest(launch: Launch) -> int:
    """Steps of the longest work tile."""
    return max(1, int(steps_per_tile(launch.domain, launch.outer).max(initial=0.0)))


def rounds_grow(first: Launch, other: Launch, slots: tuple[int, int], sms: int) -> float:
    """How much more rounds of CTAs there are, and steps of the longest of them."""
    ctas = [launch.work_tiles * launch.work.product_ctas for launch in (first, other)]
    waves = [-(-n // at_once) for n, at_once in zip(ctas, slots, strict=True)]
    turns = [-(-n // sms) for n in ctas]
    steps = longest(other) / longest(first)
    return max(1.0, steps) * max(1.0, waves[1] / max(1, waves[0]), turns[1] / max(1, turns[0]))


def moved(
    p: Prediction, level: str, direction: str | None = None, launch: str | None = None
) -> int:
    return int(
        sum(
            r.bytes
            for r in p.traffic
            if r.level == level and direction in (None, r.direction) and launch in (None, r.launch)
        )
    )


def stays_dirty(p: Prediction) -> int:
    return p.replay.dirty_bytes if p.replay else 0


def at_l2(p: Prediction, share: float, direction: str) -> int:
    """HBM bytes with an L2 of so many times the sets."""
    whole = model(p.call.profile)
    played = p.call.replay(Play(l2_model=replace(whole, sets=max(1, round(whole.sets * share)))))
    return int(played.traffic.total("hbm", direction))


def between_l2s(low: Prediction, high: Prediction, allowed: float, direction: str) -> bool:
    """Whether the one that moves less moves as much in a smaller L2, or the other as little in a larger one."""
    least, highest = (moved(p, "hbm", direction) for p in (low, high))
    small = max(at_l2(low, share, direction) for share in L2_SHARES if share < 1)
    large = min(at_l2(high, share, direction) for share in L2_SHARES if share > 1)
    return highest <= allowed * small or large <= allowed * least or large <= small


def jumps(before: Prediction, after: Prediction) -> list[str]:
    """What moves by more than its reasons allow; nothing where the library takes another kernel."""
    if another_kernel(before, after):
        return []
    jumps_found = []
    launches = list(zip(before.chain.launches, after.chain.launches, strict=True))
    slots = list(
        zip(*([r.slots for r in p.call.residencies] for p in (before, after)), strict=True)
    )
    sms = before.call.profile.sm_count
    for low, high, way in ((before, after, 1), (after, before, -1)):
        pairs = launches if way == 1 else [(b, a) for a, b in launches]
        of_tiles = [tiles_grow(a, b) for a, b in pairs]
        allowed_l2 = sum(
            moved(low, "l2", launch=a.name) * n for (a, _), n in zip(pairs, of_tiles, strict=True)
        )
        if moved(high, "l2") > MOST * allowed_l2 + FLOOR_BYTES:
            jumps_found.append(f"SM<->L2 {moved(low, 'l2')} -> {moved(high, 'l2')}")
        more = allowed_l2 / max(1, moved(low, "l2"))
        read = moved(high, "hbm", "read")
        written = moved(high, "hbm", "write")
        if read > MOST * more * moved(low, "hbm", "read") + FLOOR_BYTES and not between_l2s(
            low, high, MOST * more, "read"
        ):
            jumps_found.append(f"HBM read {moved(low, 'hbm', 'read')} -> {read}")
        limit = MOST * more * moved(low, "hbm", "write") + (MOST - 1) * stays_dirty(low)
        if written > limit + FLOOR_BYTES and not between_l2s(low, high, MOST * more, "write"):
            jumps_found.append(
                f"HBM written {moved(low, 'hbm', 'write')} -> {written}, {stays_dirty(high)} stay"
            )
        allowed = sum(
            time.total_s * max(rounds_grow(a, b, s[::way], sms), n)
            for time, (a, b), s, n in zip(low.time.launches, pairs, slots, of_tiles, strict=True)
        )
        if high.time_s > MOST * allowed:
            jumps_found.append(f"time {low.time_s * 1e6:.1f} -> {high.time_s * 1e6:.1f} us")
    return jumps_found


def hbm_seconds(p: Prediction) -> float:
    return moved(p, "hbm") / p.call.profile.need("dram_bandwidth_bytes_per_s")


def is_faster(before: Prediction, after: Prediction) -> bool:
    """Whether more work takes less time, beyond what is saved where fewer bytes come from HBM (`between_l2s`). Splits
    of another length leave another end of the last round: shorter last splits let others begin sooner. One more
    block of queries, if not whole, loads less, and all steps are taken to load the mean: 9 % of a call of a few."""
    blocks, more = (p.chain.launches[0].domain.query_blocks for p in (before, after))
    if blocks < more < 5:
        return False
    split, other = (
        [x.domain for x in p.chain.launches if x.domain.splits > 1] for p in (before, after)
    )
    if [d.key_blocks_per_split for d in split] != [d.key_blocks_per_split for d in other]:
        return False
    saved = max(0.0, hbm_seconds(before) - hbm_seconds(after)) * MOST
    return not another_kernel(before, after) and after.time_s < SLOWER * before.time_s - saved


def shrinks(before: Prediction, after: Prediction) -> bool:
    """Whether more work has fewer compulsory bytes."""
    first, other = before.hbm_bounds, after.hbm_bounds
    return (
        other.compulsory_read < first.compulsory_read
        or other.compulsory_write < first.compulsory_write
    )


GPUS = (
    "v100",
    "t4",
    "a30",
    "a100",
    "a10",
    "l4",
    "rtx-3090",
    "rtx-4090",
    "l40s",
    "h100",
    "h200",
    "b200",
)
LATENT = {"latent_kv": True, "kv_heads": 1, "head_dim": 576, "head_dim_v": 512}
TAKES: dict[str, dict[str, Any]] = {
    "fa3-fp8": {"dtype": "fp8"},
    "fa3-fp8-transposed": {"dtype": "fp8"},
    "mla": LATENT,
    "flashmla": {**LATENT, "page_size": 64},
    "dsa": {**LATENT, "top_k": 2048, "index_heads": 64},
    "dsv4": {
        "latent_kv": True,
        "kv_heads": 1,
        "head_dim": 512,
        "head_dim_v": 512,
        "mask": "window",
        "window": 127,
        "compress_ratio": 4,
        "top_k": 512,
        "index_heads": 64,
    },
    "minimal": {"dtype": "fp32"},
    "minimal-cu": {"dtype": "fp32"},
    "naive-cu": {"dtype": "fp32"},
}
PAGED = ("flashinfer", "vllm-triton", "vllm-fa2", "vllm-fa3", "sglang-fa3", "fa3-sm80")
LENGTHS = st.one_of(
    st.integers(100, 5000),
    st.sampled_from((128, 256, 512, 1024, 2048, 4096)),
    st.integers(2000, 9000),
)


@st.composite
def problems(draw: st.DrawFn, kernel: str) -> dict[str, Any]:
    heads = draw(st.sampled_from((1, 2, 4, 8, 16, 32)))
    values: dict[str, Any] = {
        "batch": draw(st.sampled_from((1, 1, 2, 4))),
        "heads": heads,
        "kv_heads": draw(st.sampled_from((heads, max(1, heads // 4)))),
        "seq_q": draw(LENGTHS),
        "head_dim": draw(st.sampled_from((32, 64, 72, 80, 96, 128, 192, 256))),
        "mask": draw(st.sampled_from(("none", "causal", "window"))),
        "dtype": draw(st.sampled_from(("fp16", "bf16"))),
        "passes": draw(st.sampled_from(("fwd", "bwd", "fwd+bwd"))),
    }
    if draw(st.integers(0, 3)) == 0:
        values |= {
            "seq_q": 1,
            "seq_k": values["seq_q"] * draw(st.sampled_from((1, 2, 4))),
            "passes": "fwd",
            "batch": draw(st.sampled_from((1, 4, 16, 64))),
            "mask": "causal",
        }
    if values["mask"] == "window":
        values["window"] = draw(st.sampled_from((128, 512, 1000)))
    if kernel in PAGED:
        values["page_size"] = draw(st.sampled_from((16, 64, 256)))
    return values | TAKES.get(kernel, {})


@st.composite
def neighbours(draw: st.DrawFn, kernel: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two problems, the second larger by less than 2 %: by 1, 32 or 128 tokens, a head or a sequence."""
    small = draw(problems(kernel))
    dimension = draw(st.sampled_from(("tokens", "tokens", "tokens", "heads", "batch")))
    if dimension == "tokens" or "latent_kv" in small:
        tokens = "seq_k" if "seq_k" in small else "seq_q"
        more = draw(
            st.sampled_from([n for n in (1, 32, 128) if n == 1 or n < 0.02 * small[tokens]])
        )
        return small, small | {tokens: small[tokens] + more}
    small["seq_q"] = min(small["seq_q"], draw(st.sampled_from((256, 512, 1000, 1024))))
    if dimension == "batch":
        small |= {
            "batch": draw(st.integers(51, 80)),
            "heads": 4,
            "kv_heads": draw(st.sampled_from((1, 4))),
        }
        return small, small | {"batch": small["batch"] + 1}
    group = draw(st.sampled_from((1, 2)))
    kv_heads = draw(st.integers(51, 80))
    small |= {"batch": 1, "kv_heads": kv_heads, "heads": group * kv_heads}
    return small, small | {"kv_heads": kv_heads + 1, "heads": group * (kv_heads + 1)}


def call(arguments: dict[str, Any], kernel: str, gpu: HardwareProfile) -> Prediction:
    """A prediction; other examples are drawn where iosim refuses."""
    try:
        return predict(AttentionProblem(**arguments), kernel, gpu)
    except InputError:
        assume(False)
        raise


def check_neighbours(kernel: str, data: st.DataObject) -> None:
    gpu = load_profile(data.draw(st.sampled_from(GPUS)))
    before, after = (
        call(arguments_here, kernel, gpu) for arguments_here in data.draw(neighbours(kernel))
    )
    assert jumps(before, after) == []
    assert not is_faster(before, after), f"{before.time_s} -> {after.time_s}"
    assert not shrinks(before, after)


MANY = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
)
ELSEWHERE = ("aiter", "aiter-triton", "ck", "hipkittens", "fa4-sm120", "fa4-256", "nsa", "xqa-sm90")
"""Kernels of GPUs, of widths, of lengths (of whole blocks) or of caches (in fp8) that are not drawn here."""
KERNELS = tuple(name for name in entry_names() if name not in ELSEWHERE)


@pytest.mark.slow
@settings(MANY, max_examples=examples(300))
@given(st.data())
def test_neighbours_move_alike(data: st.DataObject) -> None:
    check_neighbours(data.draw(st.sampled_from(KERNELS)), data)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", some(KERNELS))
@settings(MANY, max_examples=examples(24))
@given(data=st.data())
def test_neighbours_of_every_kernel_move_alike(kernel: str, data: st.DataObject) -> None:
    check_neighbours(kernel, data)


@pytest.mark.parametrize(
    ("kernel", "gpu", "arguments", "more"),
    [
        (
            "uniform-naive",
            "b200",
            {"heads": 70, "kv_heads": 70, "seq_q": 512, "head_dim": 128},
            {"heads": 71, "kv_heads": 71},
        ),
        (
            "vllm-fa2",
            "a100",
            {
                "batch": 64,
                "heads": 8,
                "kv_heads": 2,
                "seq_q": 1,
                "seq_k": 2048,
                "head_dim": 128,
                "page_size": 256,
            },
            {"seq_k": 2049},
        ),
    ],
)
def test_what_jumped_once(
    kernel: str, gpu: str, arguments: dict[str, Any], more: dict[str, Any]
) -> None:
    """A product's CTAs, where its result is wider than a tile; and a last block of one key, which is no whole step's
    bytes: 258 -> 515 us, and 104 -> 99 us."""
    before, after = (
        call(arguments_here, kernel, load_profile(gpu))
        for arguments_here in (arguments, arguments | more)
    )
    assert after.time_s == pytest.approx(before.time_s, rel=0.02)


def test_a_block_of_one_row_leaves_less_in_use() -> None:
    """`flash`, causal and backward, on a V100 reads a sixth less at 2,049 tokens than at 2,048, which an L2 10 % larger
    reads, too: each CTA spends a step on the last block, of which one row is moved. It was 18 % less when a page's lines
    lay in its sets in order, and is 16 % now that runs of them are permuted (lines.h): fewer sets overflow at 2,048."""
    arguments = {
        "batch": 2,
        "heads": 8,
        "kv_heads": 2,
        "seq_q": 2048,
        "head_dim": 80,
        "mask": "causal",
        "passes": "bwd",
        "dtype": "fp16",
    }
    before, after = (
        call(arguments | {"seq_q": n}, "flash", load_profile("v100")) for n in (2048, 2049)
    )
    least = moved(after, "hbm", "read")
    assert moved(before, "hbm", "read") > 1.15 * least
    assert at_l2(before, 1.1, "read") < 1.1 * least
    assert jumps(before, after) == []


def test_a_wide_product_is_many_ctas() -> None:
    """512 rows in tiles of 128 by 70 heads of 128 columns: 280 CTAs on 148 SMs, where 4 took 245 us."""
    p = predict(
        AttentionProblem(heads=70, seq_q=512, head_dim=128, dtype="fp16"), "uniform-naive", "b200"
    )
    values = p.chain.launches[-1]
    assert values.work_tiles * values.work.product_ctas == 4 * 70
    assert p.time.launches[-1].total_s < 20e-6


MORE = 1.25
OF_DRAM = (
    "dram_bandwidth_bytes_per_s",
    "dram_bandwidth_measured_bytes_per_s",
    "dram_read_bandwidth_bytes_per_s",
    "dram_write_bandwidth_bytes_per_s",
    "dram_copy_bandwidth_bytes_per_s",
)
OF_SMS = (
    "fp32_flops_per_s",
    "l2_read_bandwidth_bytes_per_s",
    "l2_read_bandwidth_measured_bytes_per_s",
    "power_w",
    "peak_power_w",
    "awake_power_w",
)
"""Rates of the whole GPU that grow with its SMs, and the power that lets them."""


def better(gpu: HardwareProfile, quantity: str) -> HardwareProfile:
    """The GPU with a quarter more L2, bandwidth or SMs."""
    if quantity == "l2":
        return replace(gpu, l2_bytes=int(gpu.need("l2_bytes") * MORE))
    rates = {
        n: v * MORE
        for n in (OF_SMS if quantity == "sms" else OF_DRAM)
        if (v := getattr(gpu, n)) is not None
    }
    if quantity == "sms":
        for name in ("tensor_flops_per_s", "tensor_flops_achieved_per_s"):
            rates[name] = {dtype: v * MORE for dtype, v in getattr(gpu, name).items()}
        rates["sm_count"] = int(gpu.sm_count * MORE)
    return replace(gpu, **rates)


def unevenness(p: Prediction) -> float:
    """Tiles of the busiest SM over those of the mean one, in the launch that takes longest."""
    _, launch = max(
        zip(p.time.launches, p.chain.launches, strict=True), key=lambda pair: pair[0].total_s
    )
    sms = p.call.profile.sm_count
    return -(-launch.work_tiles // sms) * sms / launch.work_tiles


@settings(MANY, max_examples=examples(400))
@given(
    st.data(),
    st.sampled_from(("l2", "bandwidth", "sms")),
    st.sampled_from(GPUS),
    st.sampled_from(KERNELS),
)
@pytest.mark.slow
def test_a_better_gpu_takes_no_longer(
    data: st.DataObject, quantity: str, name: str, kernel: str
) -> None:
    """But for another kernel that the library takes for it; for HBM bytes that CTAs cost which run at once and hold
    more of the L2; and, where the tiles no longer come out even, for SMs whose share of HBM nobody takes over: each has
    an even one, and the busiest decides (measured: `_beside_hbm` of readers/timing/launch_time.py). Tiles of unequal
    length go around the SMs in turn, so that with some numbers of SMs two long ones meet."""
    arguments = data.draw(problems(kernel))
    gpu = load_profile(name)
    before, after = (call(arguments, kernel, gpu_here) for gpu_here in (gpu, better(gpu, quantity)))
    assume(not another_kernel(before, after))
    allowed = 1.05 * max(1.0, unevenness(after) / unevenness(before)) if quantity == "sms" else 1.05
    assert after.time_s <= allowed * before.time_s + max(
        0.0, hbm_seconds(after) - hbm_seconds(before)
    )
