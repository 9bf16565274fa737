"""Replays of calls: small problems through GPUs, long ones in part, traces, plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any
from zlib import crc32

import numpy as np

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import Overrides, resolve
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.prediction.call import Call
from iosim.prediction.predictor import planned, predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay import replay as replays_module
from iosim.readers.replay.engine import PS
from iosim.readers.replay.l2 import model
from iosim.readers.replay.lowering import Lowered, LoweredLaunch, lower, start_order
from iosim.readers.replay.objects import refuse_bytes, tile_bytes
from iosim.readers.replay.play import Play
from iosim.readers.replay.replay import Replay
from iosim.readers.replay.sampling import (
    Coarse,
    Windows,
    coarse_plan,
    sampling_plan,
)
from iosim.readers.replay.sharing import keys_of, rates_of, sloped
from iosim.readers.replay.templates import Template
from iosim.studies.trace.trace import check_bins, check_traceable, trace

SMALL_GPU = {"sm_count": 6, "l2_bytes": 768 << 10}
KERNEL_PROBLEMS: dict[str, dict[str, Any]] = {
    "none": {"heads": 3, "seq_q": 700, "head_dim": 64},
    "causal": {
        "batch": 2,
        "heads": 4,
        "kv_heads": 2,
        "seq_q": 900,
        "head_dim": 64,
        "mask": "causal",
    },
    "window": {
        "heads": 2,
        "seq_q": 800,
        "seq_k": 1000,
        "head_dim": 32,
        "mask": "window",
        "window": 100,
    },
    "decode": {"batch": 2, "heads": 8, "kv_heads": 2, "seq_q": 1, "seq_k": 4000, "head_dim": 64},
    "bwd": {"heads": 2, "seq_q": 600, "head_dim": 64, "mask": "causal", "passes": "bwd"},
    "both": {"heads": 2, "kv_heads": 1, "seq_q": 400, "head_dim": 32, "passes": "fwd+bwd"},
    "packed": {
        "heads": 2,
        "seq_q": 900,
        "head_dim": 64,
        "mask": "causal",
        "seq_lens": (100, 500, 300),
    },
    "packed both": {
        "heads": 2,
        "seq_q": 900,
        "head_dim": 64,
        "seq_lens": (150, 430, 320),
        "passes": "fwd+bwd",
    },
    "pages": {"batch": 2, "heads": 4, "seq_q": 1, "seq_k": 3000, "head_dim": 64, "page_size": 256},
    "latent": {
        "heads": 16,
        "kv_heads": 1,
        "seq_q": 2,
        "seq_k": 2000,
        "head_dim": 576,
        "head_dim_v": 512,
        "latent_kv": True,
    },
    "blocks": {"heads": 2, "seq_q": 2048, "head_dim": 64, "mask": "strided", "mask_stride": 3},
    "dropout": {
        "heads": 2,
        "seq_q": 300,
        "head_dim": 64,
        "dropout": 0.1,
        "mask": "causal",
        "passes": "fwd+bwd",
    },
    "few keys": {
        "heads": 2,
        "seq_q": 900,
        "seq_k": 500,
        "head_dim": 64,
        "mask": "causal",
        "passes": "fwd+bwd",
    },
    "bias": {
        "batch": 2,
        "heads": 2,
        "seq_q": 500,
        "head_dim": 64,
        "bias": "full",
        "bias_shared": "batch",
    },
}


def played(replay: Replay) -> list[Any]:
    rows: dict[str, int] = {}
    for row in replay.traffic:
        rows[f"{row.launch} {row.tensor} {row.direction}"] = rows.get(
            f"{row.launch} {row.tensor} {row.direction}", 0
        ) + int(row.bytes)
    launches = [
        [x.name, x.begin_s, x.end_s, x.slots, x.accesses, x.waited] for x in replay.launches
    ]
    return [
        rows,
        launches,
        replay.foreign_write_bytes,
        replay.dirty_bytes,
        replay.fabric_bytes,
        replay.placement_bytes,
        len(replay.notes()),
    ]


def gpu_of(name: str, **more: Any) -> HardwareProfile:
    return replace(load_profile(name), **(SMALL_GPU | more))


def replays() -> Iterator[tuple[str, Any]]:
    yield from schedules()
    yield from in_part()
    yield from traces()
    yield from limits()
    yield from lowered()
    yield from shares()


GPUS_IN_TURN = ("a100", "h200", "b200")
DTYPES = ("bf16", "fp32", "fp8")


def taken(
    kernel: str, values: dict[str, Any], gpus: tuple[str, ...]
) -> tuple[AttentionProblem, str] | None:
    """The problem with the first type, and the first GPU, that a kernel takes; None where it takes none."""
    for gpu, dtype in product(gpus, DTYPES):
        try:
            p = AttentionProblem(**values, dtype=dtype)
            resolve(kernel, p, load_profile(gpu))
            return p, gpu
        except InputError:
            continue
    return None


def of_kernel(kernel: str) -> Iterator[tuple[str, Any]]:
    """A kernel of the catalog on GPUs of few SMs and a small L2, and its chain as arrays. Which GPU is tried first
    turns with its name, so that no other kernel shifts it."""
    turn = crc32(kernel.encode())
    for n, (name, values) in enumerate(KERNEL_PROBLEMS.items()):
        first = (turn + n) % 2
        chosen = taken(kernel, values, (*GPUS_IN_TURN[first:], *GPUS_IN_TURN[:first]))
        if chosen is None:
            continue
        p, gpu = chosen
        start = "warm" if (turn + n) % 3 == 1 else "cold"
        try:
            prediction = predict(p, kernel, gpu_of(gpu), method="replay", l2_start=start)
        except InputError:
            continue
        assert prediction.replay is not None
        yield f"{kernel} {gpu} {name} {start}", played(prediction.replay)
        yield (
            f"lowered {kernel} {name}",
            checksum(lower(plan(p, resolve(kernel, p, load_profile(gpu))), 7)),
        )


def schedules() -> Iterator[tuple[str, Any]]:
    """One kernel in the orders and directions that there are."""
    p = AttentionProblem(batch=2, heads=3, seq_q=1000, head_dim=64, dtype="bf16", mask="causal")
    for n, (order, direction, scheduler, section) in enumerate(
        product(
            ("query", "head", "batch"),
            ("ascending", "descending", "alternating"),
            ("static", "persistent", "dynamic"),
            (0, 2),
        )
    ):
        over = Overrides(
            order=order,
            direction=direction,
            scheduler=scheduler,
            section_heads=section,
            heavy_first=n % 2 == 0,
        )
        gpu = gpu_of("h200", l2_bytes=256 << 10)
        chosen = resolve("flash", p, gpu, over)
        replay = Call.of(p, chosen, gpu).replay()
        yield (
            f"flash {order} {direction} {scheduler} {section}",
            [replay.traffic.total("hbm", "read"), replay.seconds, replay.fabric_bytes],
        )


LONG: list[tuple[str, str, str, int, Overrides]] = [
    ("fa2", "h200", "none", 2, Overrides()),
    ("fa2", "a100", "causal", 4, Overrides()),
    ("triton", "a100", "none", 2, Overrides()),
    ("fa2", "l4", "none", 3, Overrides()),
    ("flash", "l4", "none", 4, Overrides(tile=(64, 64), direction="alternating")),
    ("flash", "h200", "causal", 4, Overrides(tile=(64, 64), scheduler="persistent", order="head")),
    ("flash", "h200", "none", 2, Overrides(tile=(64, 64), scheduler="dynamic")),
]
"""Kernel, GPU, mask, heads: HBM of six SMs is fast enough for them, or so slow that CTAs wait and gather."""


def in_part() -> Iterator[tuple[str, Any]]:
    """Long launches in windows and in coarse steps, with budgets that make middling ones long."""
    original = replays_functions()
    try:
        for kernel, gpu, mask, heads, over in LONG:
            for l2_kib, slow in ((384, 1.0), (1024, 0.05)):
                profile = gpu_of(gpu, l2_bytes=l2_kib << 10)
                known = (
                    profile.dram_bandwidth_measured_bytes_per_s
                    or profile.dram_bandwidth_bytes_per_s
                )
                assert known is not None
                profile = replace(profile, dram_bandwidth_measured_bytes_per_s=known * slow)
                p = AttentionProblem(
                    heads=heads, seq_q=16384, head_dim=128, dtype="bf16", mask=mask
                )
                chosen = resolve(kernel, p, profile, over)
                chain = plan(p, chosen)
                replays_set(
                    coarse=lambda *_, **__: None,
                    sampling=lambda low, slots: sampling_plan(
                        low, slots, 30_000, settle=8, window=20
                    ),
                )
                replay = Call.of(p, chosen, profile, chain).replay(Play(part=True))
                windows = replay.launches[0].windows
                yield (
                    f"windows {kernel} {gpu} {mask} {over.scheduler} {l2_kib} {slow}",
                    [
                        played(replay),
                        None
                        if windows is None
                        else [
                            windows.played.sum(),
                            windows.stands_for,
                            windows.waited,
                            windows.standard_error(),
                        ],
                    ],
                )
                planned: list[Coarse | None] = []
                replays_set(
                    coarse=lambda *a, **k: (
                        planned.append(coarse_plan(*a, **k, budget=30_000))  # noqa: B023
                        or planned[-1]  # noqa: B023
                    ),
                    sampling=lambda low, slots: None,
                )
                replay = Call.of(p, chosen, profile, chain).replay(Play(part=True))
                grain = planned[-1]
                yield (
                    f"coarse {kernel} {gpu} {mask} {over.scheduler} {l2_kib} {slow}",
                    [
                        played(replay),
                        None
                        if grain is None
                        else [
                            grain.how.steps,
                            grain.how.heads,
                            grain.how.of,
                            grain.how.held,
                            grain.how.small_steps,
                            grain.lead.sum(),
                            grain.trail.sum(),
                            grain.least_sets,
                        ],
                    ],
                )
    finally:
        replays_set(*original)
    yield from plans()


def replays_functions() -> tuple[Any, Any]:
    return replays_module.coarse_plan, replays_module.sampling_plan


def replays_set(coarse: Any, sampling: Any) -> None:
    replays_module.coarse_plan, replays_module.sampling_plan = coarse, sampling


def plans() -> Iterator[tuple[str, Any]]:
    """How long launches are cut, without playing them."""
    ones = np.ones(400, dtype=np.int32)
    for steps, slots, budget, group in product(
        (100, 1000), (10, 100, 500), (10_000, 100_000), (1, 2)
    ):
        low = LoweredLaunch(
            "x",
            ones,
            ones * steps,
            (),
            (Template("K", 0, ones, coef=1), Template("V", 0, ones, coef=1)),
            (),
            ones.astype(np.uint8),
            ones,
            ones,
            group=group,
        )
        sampled = sampling_plan(low, slots, budget, 5, 5)
        yield (
            f"windows {steps} {slots} {budget} {group}",
            sampled and [sampled.settle, sampled.window, sampled.jump, sampled.windows],
        )
        full = sampling_plan(replace(low, count=low.count * 1000), slots)
        yield (
            f"windows {steps} {slots} {budget} {group} long",
            full and [full.settle, full.window, full.jump, full.windows],
        )
    for kernel, gpu, values in (
        ("fa2", "l4", {"mask": "causal"}),
        ("fa2", "h200", {"heads": 8, "mask": "causal"}),
        ("fa2", "l4", {"mask": "window", "window": 3000}),
        ("triton", "a100", {}),
        ("fa2", "a100", {"passes": "bwd"}),
        ("fa2", "a100", {"passes": "fwd+bwd"}),
        ("fa1", "a100", {}),
        ("flash", "l4", {"kv_heads": 1, "heads": 4}),
        ("fa2", "l4", {"seq_q": 1, "seq_k": 65536}),
        ("eager", "l4", {"seq_q": 2048}),
    ):
        values = {"heads": 2, "seq_q": 32768, "head_dim": 128, "dtype": "bf16"} | values
        p, profile = AttentionProblem(**values), load_profile(gpu)
        chain = plan(p, resolve(kernel, p, profile))
        low = lower(chain, 1)
        for budget in (2_000, 20_000, 200_000, 1_000_000):
            coarse = coarse_plan(chain, low, model(profile), budget)
            sampled = coarse and [
                coarse.how.name,
                coarse.how.steps,
                coarse.how.heads,
                coarse.how.of,
                coarse.how.held,
                coarse.how.small_steps,
                coarse.least_sets,
                coarse.lead.size,
                coarse.lead.sum(),
                coarse.trail.sum(),
                coarse.lowered.launches[0].accesses,
            ]
            yield f"coarse {kernel} {gpu} {' '.join(map(str, values.values()))} {budget}", sampled
    for n in (2, 3, 5):
        sizes = np.arange(1, n + 1, dtype=np.int64)
        windows = Windows(
            10 * sizes,
            30 * sizes**2,
            np.outer(sizes**3, [3, 5]),
            np.outer(sizes[::-1] ** 2, [2, 0]),
            0.0,
        )
        yield f"windows' totals {n}", [*windows.totals(), windows.standard_error()]


def traces() -> Iterator[tuple[str, Any]]:
    for kernel, gpu, values, only in (
        ("fa2", "h200", {"mask": "causal"}, None),
        ("cudnn", "h200", {}, None),
        ("eager", "a100", {"seq_q": 300}, None),
        ("fa2", "a100", {"passes": "bwd"}, "bwd.main"),
        ("fa2", "a100", {"seq_q": 1, "seq_k": 5000}, None),
        ("fa2", "a100", {"mask": "causal", "seq_lens": (300, 700)}, None),
        ("flex", "h200", {"mask": "strided", "mask_stride": 2, "seq_q": 2048}, None),
    ):
        p = AttentionProblem(
            **({"heads": 3, "seq_q": 1000, "head_dim": 64, "dtype": "bf16"} | values)
        )
        prediction = predict(p, kernel, gpu_of(gpu, l2_bytes=512 << 10), method="replay")
        traced = trace(prediction, launch=only, bins=7)
        launches = []
        for x in traced.launches:
            n = np.arange(1, x.ctas.tiles + 1)
            c = x.ctas
            launches.append(
                [
                    x.name,
                    x.begin_ps,
                    x.end_ps,
                    x.slots,
                    [
                        (n * f).sum()
                        for f in (
                            c.head,
                            c.block,
                            c.sm,
                            c.slot,
                            c.start_ps,
                            c.end_ps,
                            c.owner,
                            c.first,
                            c.count,
                            c.down,
                        )
                    ],
                    [
                        x.reuse.width_bytes,
                        x.reuse.loads[:8],
                        x.reuse.deeper,
                        x.reuse.first,
                        x.reuse.beyond(200_000),
                        x.reuse.total,
                    ],
                    x.shared_tensors,
                    x.bytes_per_index,
                    np.nan_to_num(x.in_use_bytes),
                    np.nan_to_num(x.heads_in_use),
                    x.peak_in_use_bytes,
                    x.median_in_use_bytes,
                    x.share_above(50_000),
                ]
            )
        yield (
            f"trace {kernel} {gpu} {' '.join(map(str, values.values()))}",
            [
                traced.bin_ps,
                traced.hit,
                traced.miss,
                np.nan_to_num(traced.hit_rate()),
                traced.misses(),
                traced.loaded(),
                traced.partition_bytes,
                traced.bins,
                np.arange(traced.bins) * (traced.bin_ps / PS),
                traced.launch(traced.launches[-1].name).slots,
                launches,
            ],
        )


def checksum(low: Lowered) -> list[Any]:
    """Of arrays, in their order."""

    def of(a: Any) -> int:
        flat = np.asarray(a, dtype=np.int64).ravel()
        return int((flat * np.arange(1, flat.size + 1) % 1_000_003).sum())

    parts: list[Any] = [low.tensors, of(low.size), of(low.owner)]
    for x in low.launches:
        templates = [
            [t.tensor, t.mode, of(t.base), t.coef, t.span, t.rows, t.row_stride]
            for t in (*x.prologue, *x.loop, *x.epilogue)
        ]
        parts.append(
            [
                x.name,
                x.tiles,
                x.accesses,
                of(x.first),
                of(x.count),
                of(x.down),
                of(x.head),
                of(x.block),
                x.group,
                None if x.indices is None else of(x.indices),
                [[str(o), n] for o, n in x.owned],
                templates,
            ]
        )
    return parts


def limits() -> Iterator[tuple[str, Any]]:
    """How much memory a replay may take, and how many bins and accesses a trace."""
    for case in (
        (48_611_111, 0, 0),
        (48_611_112, 0, 0),
        (0, 1_750_000_000, 0),
        (0, 1_750_000_001, 0),
        (0, 0, 125_000_000),
        (0, 0, 125_000_001),
        (10_000_000, 690_000_000, 50_000_000),
        (10_000_000, 690_000_001, 50_000_000),
    ):
        try:
            refuse_bytes(*case)
            yield f"memory {case}", "taken"
        except InputError:
            yield f"memory {case}", "refused"
    for bins in (0, 1, 100_000, 100_001):
        try:
            check_bins(bins)
            yield f"bins {bins}", "taken"
        except InputError:
            yield f"bins {bins}", "refused"
    for kernel, tokens in (("fa2", 2048), ("eager", 512), ("flash1", 512)):
        p = AttentionProblem(heads=2, seq_q=tokens, head_dim=64, dtype="fp16")
        call = planned(p, kernel, "a100")
        yield f"accesses of {kernel}", [check_traceable(call), tile_bytes(call.chain)]


def lowered() -> Iterator[tuple[str, Any]]:
    """Start orders as arrays."""
    p = AttentionProblem(batch=2, heads=3, seq_q=500, head_dim=64, dtype="bf16", mask="causal")
    for order, section, heavy in product(("query", "head", "batch"), (0, 2, 4, 100), (False, True)):
        over = Overrides(
            order=order,
            section_heads=section,
            heavy_first=heavy,
            tile=(128, 64),
            direction="alternating",
        )
        launch = plan(p, resolve("flash", p, load_profile("a100"), over)).launches[0]
        head, block = start_order(launch)
        yield (
            f"order {order} {section} {heavy}",
            ["".join(map(str, head)), "".join(map(str, block))],
        )


def shares() -> Iterator[tuple[str, Any]]:
    for kernel, gpu, head_dim, mask in product(
        ("flash", "fa2", "cutlass", "triton"), ("a100", "h200"), (64, 128), ("none", "causal")
    ):
        for dtype in ("bf16", "fp16"):
            p = AttentionProblem(heads=2, seq_q=512, head_dim=head_dim, mask=mask, dtype=dtype)
            chosen = resolve(kernel, p, load_profile(gpu))
            shares_found = [
                rates_of(chosen, p, n, compiled=c) for n in (1, 2, 3, 4, 8) for c in (True, False)
            ]
            yield (
                f"shares {kernel} {gpu} {head_dim} {mask} {dtype}",
                [shares_found, [str(k) for k in keys_of(chosen, p, 2)]],
            )
            yield (
                f"stated share {kernel} {gpu} {head_dim} {mask} {dtype}",
                rates_of(replace(chosen, age_share=0.3), p, 3),
            )
    yield "slopes", [sloped(0.5, 2), sloped(0.3, 4)]
