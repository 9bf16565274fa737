"""Times of chains' launches by resource, and the parts of the timing model on grids of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any
from zlib import crc32

from steps import step_cost

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import Overrides, resolve
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.launch import Domain, Launch, Outer
from iosim.kernel.schedule import Order, Schedule, Start
from iosim.kernel.unit import UNITS, MatrixUnit
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing.chain_time import ChainTime
from iosim.readers.timing.makespan import makespan, steps_per_tile
from iosim.readers.timing.overlap import beside
from iosim.readers.timing.rates import SmRates, Waits
from iosim.readers.timing.running import executed_pairs, reuses_keys, unit_model
from iosim.readers.timing.step_terms import row_padding
from iosim.readers.timing.step_time import StepCost, step_cycles

GPUS = ("v100", "t4", "a100", "l4", "h100", "h200", "b200", "rtx-4090")
PROBLEMS: dict[str, dict[str, Any]] = {
    "long": {"heads": 8, "seq_q": 4096, "head_dim": 128},
    "causal": {
        "batch": 2,
        "heads": 8,
        "kv_heads": 2,
        "seq_q": 3000,
        "head_dim": 64,
        "mask": "causal",
    },
    "short": {"batch": 16, "heads": 12, "seq_q": 64, "head_dim": 64},
    "window": {
        "heads": 4,
        "seq_q": 2000,
        "seq_k": 5000,
        "head_dim": 96,
        "mask": "window",
        "window": 300,
    },
    "decode": {"batch": 4, "heads": 32, "kv_heads": 8, "seq_q": 1, "seq_k": 8192, "head_dim": 128},
    "backward": {"heads": 8, "seq_q": 2048, "head_dim": 128, "mask": "causal", "passes": "bwd"},
    "both": {"batch": 3, "heads": 5, "seq_q": 700, "head_dim": 64, "passes": "fwd+bwd"},
    "packed": {
        "heads": 8,
        "seq_q": 3000,
        "head_dim": 64,
        "mask": "causal",
        "seq_lens": (100, 1900, 1000),
    },
    "shared": {
        "batch": 1,
        "heads": 16,
        "kv_heads": 1,
        "seq_q": 1,
        "seq_k": 4096,
        "head_dim": 576,
        "head_dim_v": 512,
        "latent_kv": True,
    },
}


def timed(
    p: AttentionProblem, kernel: str, gpu: HardwareProfile, over: Overrides | None = None
) -> Iterator[ChainTime]:
    """By what was measured on the GPU, then by its specification."""
    chosen = resolve(kernel, p, gpu, over)
    call = Call.of(p, chosen, gpu)
    traffic = call.counted + call.capacity()
    for measured in (True, False):
        yield call.time(traffic, measured=measured)


def told(time: ChainTime) -> list[Any]:
    return [[t.name, t.seconds, t.waves, t.total_s, t.bound_by] for t in time.launches] + [
        time.bound_by,
        len(time.missing),
    ]


DTYPES = ("fp16", "bf16", "fp16", "fp16", "fp32", "fp16", "bf16")


def first_timed(
    kernel: str, gpu: str, values: dict[str, Any], dtypes: tuple[str, ...]
) -> tuple[str, list[ChainTime]]:
    """The times with the first of these types that the kernel takes there. Raises InputError: it takes none."""
    for dtype in dtypes:
        try:
            return dtype, list(
                timed(AttentionProblem(**values, dtype=dtype), kernel, load_profile(gpu))
            )
        except InputError:
            continue
    raise InputError("no type is taken")


def of_kernel(kernel: str) -> Iterator[tuple[str, Any]]:
    """Times of its chains; which type is tried first turns with its name, so that no other kernel shifts it."""
    for n, (gpu, (name, values)) in enumerate(
        product(GPUS, PROBLEMS.items()), crc32(kernel.encode()) % 7
    ):
        try:
            dtype, times = first_timed(kernel, gpu, values, (DTYPES[n % 7], "fp16", "fp8"))
        except InputError:
            continue
        if n % 3 and len(times[0].launches) > 2:
            continue
        yield f"{kernel} {gpu} {name} {dtype}", told(times[0])
        if n % 5 == 0:
            yield f"{kernel} {gpu} {name} {dtype} specification", told(times[1])


def unknown() -> Iterator[tuple[str, Any]]:
    """Profiles that do not know a number."""
    p = AttentionProblem(heads=8, seq_q=2048, head_dim=128, dtype="bf16", mask="causal")
    a100 = load_profile("a100")
    for field in (
        "dram_bandwidth_measured_bytes_per_s",
        "dram_bandwidth_bytes_per_s",
        "l2_read_bandwidth_bytes_per_s",
        "l2_read_bandwidth_measured_bytes_per_s",
        "fp32_flops_per_s",
        "exp_per_clock_per_sm",
        "boost_clock_hz",
        "sustained_clock_hz",
        "shared_memory_bytes_per_clock_per_sm",
    ):
        for kernel in ("fa2", "naive"):
            gpu = replace(a100, **{field: None})  # type: ignore[arg-type]
            yield f"without {field} {kernel}", [told(t) for t in timed(p, kernel, gpu)]
    for field in ("tensor_flops_per_s", "tensor_flops_achieved_per_s"):
        gpu = replace(a100, **{field: {}})  # type: ignore[arg-type]
        yield f"without {field}", [told(t) for t in timed(p, "fa2", gpu)]


def steps() -> Iterator[tuple[str, Any]]:
    """One step of a loop: what each unit needs, and how it overlaps among the CTAs of an SM."""
    rates = SmRates(Waits.of(load_profile("h200"), 1.0), 1.5e9, 4096.0, 128.0, 16.0, 128.0, 64.0)
    for kernel, gpu, passes in (
        ("fa2", "a100", "fwd"),
        ("fa2", "a100", "bwd"),
        ("fa1", "a100", "fwd"),
        ("fa3", "h100", "fwd"),
        ("fa3", "h100", "bwd"),
        ("cudnn", "h100", "fwd"),
        ("cutlass", "v100", "fwd"),
        ("cutlass", "a100", "bwd"),
        ("triton", "a100", "fwd"),
    ):
        p = AttentionProblem(heads=2, seq_q=512, head_dim=128, dtype="fp16", passes=passes)
        chosen = resolve(kernel, p, load_profile(gpu))
        for launch in plan(p, chosen).launches:
            if not launch.work.exps_per_pair:
                continue
            for unit in MatrixUnit:
                for stages, cc in ((1, 90), (2, 90), (1, 75)):
                    staged = replace(launch, work=replace(launch.work, stages=stages))
                    cost = step_cost(staged, UNITS[unit], rates, 30000.0, 2, cc)
                    terms = [
                        cost.tensor,
                        cost.softmax,
                        cost.smem,
                        cost.l2,
                        cost.exposed,
                        cost.streams,
                        cost.meeting,
                    ]
                    cycles = [step_cycles(cost, n) for n in (1, 2, 3)]
                    if stages == 1 or unit is MatrixUnit.WGMMA:
                        yield f"step {kernel} {launch.name} {unit} {stages} {cc}", [*terms, *cycles]
            models = [
                unit_model(launch, load_profile(g), p.dtype, chosen) for g in ("a100", "h100")
            ]
            units = [
                next(str(unit) for unit, row in UNITS.items() if row == model) for model in models
            ]
            yield f"units {kernel} {launch.name}", units
    for unit, warps in product(MatrixUnit, (1, 3, 4, 8, 9)):
        yield (
            f"padding {unit} {warps}",
            [row_padding(q, warps, UNITS[unit]) for q in (1, 16, 17, 64, 65, 128, 192)],
        )
    for unit, smem in product(MatrixUnit, (0.0, 50.0, 5000.0)):
        model = UNITS[unit]
        cost = StepCost(
            300.0,
            200.0,
            smem,
            70.0,
            40.0,
            1.5,
            model.overlap,
            fragments=smem if model.issued_by_warps else 0.0,
        )
        other = replace(cost, tensor=200.0, softmax=300.0, streams=1.0)
        yield (
            f"overlap {unit} {smem}",
            [[step_cycles(c, n) for n in (1, 2, 4)] for c in (cost, other)],
        )
    yield (
        "beside",
        [
            beside(*x)
            for x in ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (3.0, 4.0), (0.1, 4.0), (-1.0, 0.0))
        ],
    )


def spans() -> Iterator[tuple[str, Any]]:
    """Grids of work tiles over SMs."""
    for tokens, mask, heads, sms, per_sm in product(
        (640, 2000), ("none", "causal"), (1, 3, 20), (4, 7, 30), (1, 2, 3)
    ):
        p = AttentionProblem(heads=heads, seq_q=tokens, head_dim=64, dtype="fp16", mask=mask)
        launch = plan(p, resolve("fa2", p, load_profile("a100"))).launches[0]
        for order, section, heavy in (
            (Order.QUERY, 0, False),
            (Order.HEAD, 0, True),
            (Order.HEAD, 2, False),
            (Order.BATCH, 0, True),
        ):
            if order is Order.BATCH and per_sm != 2:
                continue
            launch_here = replace(
                launch,
                schedule=Schedule(
                    order=order,
                    section_heads=section,
                    start=Start.HEAVY_FIRST if heavy else Start.LIGHT_FIRST,
                ),
            )
            span = makespan(launch_here, sms, per_sm, lambda n: 100.0 + 30.0 * n, 250.0)
            yield (
                f"span {tokens} {mask} {heads} heads {sms}x{per_sm} {order} {section} {int(heavy)}",
                [span.cycles, span.steps, span.rounds],
            )
    for outer, splits in ((Outer.QUERY, 1), (Outer.KEY, 1), (Outer.SPLIT, 3), (Outer.HEAD, 1)):
        for lengths in (None, (300, 0, 57)):
            tokens = 357
            p = AttentionProblem(
                heads=1,
                seq_q=tokens,
                head_dim=64,
                dtype="fp16",
                mask="causal",
                **({"seq_lens": tuple(n for n in lengths if n)} if lengths else {}),
            )
            d = replace(
                plan(p, resolve("fa2", p, load_profile("a100"))).launches[0].domain, splits=splits
            )
            yield f"steps {outer} {lengths}", steps_per_tile(d, outer)


def few() -> Iterator[tuple[str, Any]]:
    """Whole chains, and what only a few launches state."""
    p = AttentionProblem(heads=4, seq_q=1000, head_dim=64, dtype="fp16", passes="fwd+bwd")
    for kernel, gpu in (("fa2", "a100"), ("eager", "v100")):
        chosen = resolve(kernel, p, load_profile(gpu))
        chain = plan(p, chosen)
        for shared in (0, 3):
            works = (replace(x.work, shared_bytes_per_pair=shared) for x in chain.launches)
            launches = tuple(replace(x, work=w) for x, w in zip(chain.launches, works, strict=True))
            short_chain = replace(chain, launches=launches)
            call = Call.of(p, chosen, load_profile(gpu), short_chain)
            time = call.time(call.counted + call.capacity())
            yield f"whole {kernel} {gpu} {shared}", [time.total_s, time.to_dict()]
    for gpu in ("v100", "a100", "h100"):
        q = p.with_(passes="fwd", dtype="fp8")
        chosen = resolve("flash", p.with_(passes="fwd"), load_profile(gpu))
        call = Call.of(q, chosen, load_profile(gpu))
        yield f"fp8 {gpu}", told(call.time(call.counted + call.capacity()))


def shapes() -> Iterator[tuple[str, Any]]:
    """What several tiles of a head share, and pairs that are computed."""
    for q, k in product((1, 2, 3), repeat=2):
        d = Domain(1, 2, 64 * q - 5, 64 * k - 5, 64, 64)
        areas = [
            reuses_keys(Launch("x", d, outer, ()))
            for outer in (Outer.QUERY, Outer.KEY, Outer.SPLIT, Outer.PAIR, Outer.FLAT)
        ]
        yield f"shares keys {q}x{k}", [*areas, executed_pairs(Launch("x", d, Outer.QUERY, ()))]


def cases() -> Iterator[tuple[str, Any]]:
    for part in (unknown, steps, spans, few, shapes):
        yield from part()
