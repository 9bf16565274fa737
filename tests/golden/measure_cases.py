"""What is measured and what comes of it, without a GPU: calls that options choose and how a GPU can run them, profiles
made of raw numbers, names of kernels. Each case changes one value of a whole one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.evidence.cuda.spec import BUILT, BwdSpec, FwdSpec
from iosim.evidence.measure import choose
from iosim.evidence.measure.calibrate import MOST, MOST_READ, OTHERS, derive, sound
from iosim.evidence.measure.case import Case
from iosim.evidence.measure.choose import Choice
from iosim.evidence.measure.collect import counted_text, short_name
from iosim.evidence.measure.fit import misses_by_time
from iosim.evidence.measure.profile_text import profile_text

HERE = Path(__file__).resolve().parent
CAPABILITIES = (*BUILT, "9.9", "10.0", "12.0")

# --- calls ---

CHOICES: Sequence[dict[str, Any]] = (
    *({"head_dim": (d,)} for d in (64, 96, 128, 256, 80)),
    *({"head_dim": (d,), "splits": 4} for d in (64, 128)),
    {"causal": True},
    {"causal": True, "heavy_first": False},
    {
        "causal": True,
        "section_heads": 4,
        "order": ("query", "head"),
        "direction": ("descending", "ascending"),
    },
    {"window": 100},
    {"window": 100, "causal": True},
    {"window": 100, "kernel": ("flash_bwd",)},
    {"window": 100, "kernel": ("naive",)},
    {"persistent": True, "dtype": "bf16", "heavy_first": True},
    {"stages": 3},
    {"warps": 8},
    {"tile": ((64, 64), (128, 32), (256, 64))},
    {"tile": ((64, 256), (96, 64), (32, 32)), "head_dim": (64,)},
    {"tile": ((128, 128),), "warps": 2},
    {"kernel": ("flash_bwd",), "head_dim": (64, 128), "deterministic": True},
    {"kernel": ("flash_bwd",), "head_dim": (96,)},
    {"kernel": ("flash_bwd",), "tile": ((64, 64), (32, 8))},
    {"kernel": ("naive",), "bypass_l1": True},
    {"kernel": ("naive",), "seq_k": 100, "dtype": "bf16", "causal": True},
    {"kernel": ("naive", "minimal"), "bypass_l1": True},
    {"kernel": ("minimal",), "head_dim": (64,)},
    {"kernel": ("minimal",), "seq_q": (48,)},
    {"kernel": ("minimal",), "seq_k": 64},
    {"kernel": ("minimal",), "kv_heads": 8},
    {"kernel": ("minimal",), "causal": True},
    {"kernel": ("minimal",), "dtype": "fp16"},
    {"kernel": ("minimal",), "dtype": "fp32"},
    {"kernel": ("strange",)},
    {"seq_q": (64, 128), "heads": (4, 8), "kv_heads": 4, "batch": 3, "seq_k": 500},
)
BACKWARD_SIDES = ((128, 128), (64, 128), (256, 128), (128, 256))


def call_text(case: Case) -> str:
    return f"{case.implementation} {case.spec} {case.shape} {case.order} {case.causal} {case.note}"


def chosen() -> Iterator[tuple[str, Any]]:
    for options in CHOICES:
        by_text: dict[str, list[str]] = {}
        for cc in CAPABILITIES:
            try:
                text = "\n".join(call_text(case) for case in choose.cases_of(Choice(**options), cc))
            except InputError as error:
                text = f"refused: {str(error).partition('; accepted')[0]}"
            by_text.setdefault(text, []).append(cc)
        yield (
            f"choice {options}",
            {" ".join(ccs): text.split("\n") for text, ccs in by_text.items()},
        )


def shrunk() -> Iterator[tuple[str, Any]]:
    """Tiles made to fit, by capability; where nothing is smaller, they stay too large."""
    shapes = [
        *choose.TILES.values(),
        *choose.DECODE_TILES.values(),
        *(
            FwdSpec(256, q, k, 8, stages)
            for q, k in ((256, 128), (128, 64), (64, 32))
            for stages in (1, 2, 3)
        ),
    ]
    for cc in CAPABILITIES:
        yield (
            f"shrunk for {cc}",
            [
                [choose._shared_bytes(cc)],
                *([str(spec), str(choose._shrunk(spec, cc))] for spec in shapes),
            ],
        )
        backward = [BwdSpec(d, q, k, k // 16) for d in (64, 128) for q, k in BACKWARD_SIDES]
        yield (
            f"backwards shrunk for {cc}",
            [str(choose._shrunk_backward(spec, cc)) for spec in backward],
        )
        cases, reasons = choose.fitted(choose.named(["quick"]), cc)
        yield f"quick plan fitted to {cc}", [*map(call_text, cases), *reasons]


# --- profiles ---

RAW: dict[str, Any] = json.loads(
    (HERE.parent / "data" / "calibrate_h200.json").read_text(encoding="utf-8")
)
FILL: dict[str, Any] = next(row for row in RAW["counters"]["rows"] if row["pattern"] == "fill")
SUM: dict[str, Any] = next(row for row in RAW["counters"]["rows"] if row["pattern"] == "sum")
SCAN: dict[str, Any] = RAW["counters"]["rows"][0]
NO_SCANS = RAW | {"counters": {"rows": [SUM, FILL]}}
"""Without scans, to which constants would be fitted for seconds."""
STRANGE = {"gpu": "NVIDIA Strange 1"}
VALUES: Sequence[Any] = (None, 0, -1, True, "x", 1, 0.5, float("nan"), 1e20, 1e19, [1])
CHANGES: Sequence[dict[str, Any]] = (
    {},
    STRANGE,
    *(
        {name: value}
        for name in ("sms", "clock_hz", "hbm_latency_s", "exp_per_s")
        for value in VALUES
    ),
    *({"compute_capability": text} for text in ("", "9", "9.0a", "10.0", "123.0", 9.0, None)),
    *(STRANGE | {"compute_capability": text} for text in ("7.5", "8.0", "8.9", "9.0", "12.0", "")),
    *({"gpu": text} for text in (None, 3, "NVIDIA H100 80GB HBM3", "a\nb")),
    *(
        STRANGE | {name: None}
        for name in ("sms", "memory_bytes", "memory_clock_hz", "memory_bus_bits", "clock_hz")
    ),
    *(
        STRANGE | {"compute_capability": "8.0", name: None}
        for name in ("tensor_fp16_mma_flop_per_s", "clock_hz")
    ),
    STRANGE | {"hbm_read_bandwidth_bytes_per_s": 9e12},
    STRANGE | {"hbm_read_bandwidth_bytes_per_s": None},
    *(
        {"l2_curves": curves}
        for curves in (
            None,
            {},
            {"private": None},
            {"private": []},
            {"private": [[1, 1e12]]},
            {
                "private": [
                    [0.5, 1e12],
                    [1e6, 2e12],
                    (1e7, 3e12),
                    [1e7],
                    [1e8, 0],
                    [-1, 5],
                    "ab",
                    [1e6, 4e12],
                ]
            },
        )
    ),
    *(
        {"counters": counters}
        for counters in (None, {}, {"rows": 3}, {"rows": []}, {"rows": [3, {}]})
    ),
    {"l2_bytes": None},
    {"hbm_latency_s": 1e-9},
    {"l2_latency_s": 9e-7},
)
LIMITS = [
    (name, value)
    for name, limit in MOST.items()
    for value in (None, 0, 1, 1.5, True, limit, limit + 1)
]
READS = SCAN["passes"] * SCAN["footprint_bytes"]
ROWS: Mapping[str, Sequence[Any]] = {
    "scan": [SCAN | {name: value} for name, value in LIMITS]
    + [
        SCAN | {"hbm_read": value}
        for value in (None, "x", -1, 0, MOST_READ * READS + OTHERS, MOST_READ * READS + OTHERS + 1)
    ]
    + [SCAN | {"passes": value} for value in (1, 2, 3)]
    + [SCAN | {"hbm_write": value} for value in (None, "x", True, 1e20, -1e20, 9e19)]
    + [SCAN | {"pattern": value} for value in (None, 3, "other")],
    "fill": [FILL | {"passes": 1}, FILL | {"hbm_read": None}],
}
WRITTEN_WITH = {"gpu", "compute_capability", "hbm_latency_s", "l2_latency_s"}
"""Changed numbers that change more of a profile's text than their own line."""
FILLS: Sequence[tuple[dict[str, Any], ...]] = (
    (FILL,),
    (FILL, SUM),
    (FILL | {"hbm_read": None}, SUM),
    (FILL | {"hbm_write": None}, SUM),
    (FILL, SUM | {"hbm_write": None}),
    (FILL, SUM | {"hbm_write": 5 << 20}),
    (FILL | {"hbm_write": 0},),
    (FILL | {"hbm_write": 2 * FILL["footprint_bytes"]},),
    (SUM,),
)


def derived(raw: dict[str, Any]) -> Any:
    remarks: list[str] = []
    try:
        entries = derive(raw, left_out=remarks)
    except InputError as error:
        return f"refused: {error}"
    values = {
        name: [str(entry.value)[:300], entry.kind, entry.source] for name, entry in entries.items()
    }
    return {"entries": values, "left out": remarks}


def written(raw: dict[str, Any]) -> Any:
    remarks: list[str] = []
    try:
        text = profile_text(raw, "mine", left_out=remarks)
    except InputError as error:
        return f"refused: {error}"
    return [*text.splitlines(), *remarks]


def profiles() -> Iterator[tuple[str, Any]]:
    base, base_lines = derived(NO_SCANS), written(NO_SCANS)
    yield "calibrated", base
    yield "calibrated, written", base_lines
    for change in CHANGES:
        raw = NO_SCANS | change
        now = derived(raw)
        lines = written(raw) if WRITTEN_WITH & change.keys() or not change else None
        if isinstance(now, dict):
            now = {
                "other": {n: e for n, e in now["entries"].items() if e != base["entries"].get(n)},
                "gone": [n for n in base["entries"] if n not in now["entries"]],
                "left out": now["left out"],
            }
        if isinstance(lines, list):
            lines = {
                "other": [line for line in lines if line not in base_lines],
                "gone": [line.partition(" =")[0] for line in base_lines if line not in lines],
            }
        yield f"calibrated with {change}", [now, lines]
    for name, rows in ROWS.items():
        for n, row in enumerate(rows):
            remarks: list[str] = []
            readable = sound({"counters": {"rows": [row]}}, remarks)
            why = [remark for remark in remarks if remark.startswith("counters")]
            yield f"counters, {name} {n}", [len(readable["rows"]), *why]
    for n, several in enumerate(FILLS):
        entries = derived(RAW | {"counters": {"rows": list(several)}})["entries"]
        yield (
            f"fill {n}",
            {name: entries.get(name) for name in ("launch_fetch_bytes", "l2_dirty_fraction")},
        )
    without = derived({**RAW, "l2_bytes": None, "counters": {"rows": [FILL]}})
    yield "fill of an L2 without a size", without["left out"]
    curve = [[1 << 20, 9e12], [2 << 20, 8e12], [3 << 20, 5e12], [4 << 20, 4e12]]
    for rate in (None, 3e12, 4e12, 8.999e12, 9e12, 1e13):
        points = misses_by_time({"private": curve, "hbm_read_bandwidth_bytes_per_s": rate})
        yield f"misses by time at {rate}", points


NAMES = (
    "void at::native::k<(int)4, c10::F<float>>(int, float)",
    "kernel(int)",
    "(anonymous namespace)::k(int)",
    "void cutlass::device_kernel<f(int)::g>(P)",
    "plain",
    "std::pytorch_flash::k<a<b>(c)>(d)(e)",
    "voidless<1>(x)",
)


def cases() -> Iterator[tuple[str, Any]]:
    yield from chosen()
    yield from shrunk()
    yield from profiles()
    for name in NAMES:
        yield f"name {name}", short_name(name)
    for name, value in (
        ("seconds", 1.23456789012e-5),
        ("hbm_read", 1e6 + 0.6),
        ("hbm_read", None),
        ("seconds", 0.0),
    ):
        yield f"cell {name} {value}", counted_text(name, value)
