"""From options, or from the plans of `plan.toml`, to calls, and from calls to those that a GPU can run: tiles by
default, dtype and stages on cc 7.5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass, fields, replace
from iosim.base.schema import read_toml
from iosim.evidence.crossed import crossed
from iosim.evidence.cuda.launch import Order, Shape
from iosim.evidence.cuda.spec import (
    BUILT,
    STATIC_BYTES_MARGIN,
    BwdSpec,
    FwdSpec,
    MinimalSpec,
    NaiveSpec,
    Spec,
    shared_bytes_per_cta,
)
from iosim.evidence.cuda.tile_builds import LIVE_LIMIT, live_registers, tuned
from iosim.evidence.measure.case import KINDS, Case

LEAST_BLOCK_K = 32


@dataclass(frozen=True)
class Choice:
    """What the options ask for; every list is combined with every other. `tile` None is each head_dim's default.
    `warps`, `stages` None is the default tile's, or what a tile of one's own needs. `heavy_first` None is the default:
    on where causal."""

    kernel: Sequence[str] = ("flash_fwd",)
    seq_q: Sequence[int] = (4096,)
    seq_k: int | None = None
    head_dim: Sequence[int] = (128,)
    batch: int = 1
    heads: Sequence[int] = (32,)
    kv_heads: int | None = None
    causal: bool = False
    window: int | None = None
    dtype: str | None = None
    tile: Sequence[tuple[int, int]] | None = None
    warps: int | None = None
    stages: int | None = None
    order: Sequence[str] | None = None
    direction: Sequence[str] | None = None
    heavy_first: bool | None = None
    section_heads: int | None = None
    persistent: bool = False
    splits: int = 1
    deterministic: bool = False
    bypass_l1: bool = False


def cases_of(choice: Choice, cc: str) -> list[Case]:
    """The calls that the options ask for, on compute capability `cc`. Raises InputError where a kernel, a size or a
    tile does not exist there."""
    for name in choice.kernel:
        if name not in KINDS:
            raise InputError(
                f"`kernel` '{name}' is not measured here; accepted: {', '.join(KINDS)}"
            )
    if choice.bypass_l1 and set(choice.kernel) != {"naive"}:
        raise InputError(
            f"`bypass_l1` is not built for {', '.join(choice.kernel)}; accepted: `kernel` naive alone"
        )
    if choice.causal and choice.window is not None:
        raise InputError(
            f"`causal` contradicts `window` {choice.window}: a window is causal already; give one of them"
        )
    cases: list[Case] = []
    for kernel, head_dim, seq, heads in product(
        choice.kernel, choice.head_dim, choice.seq_q, choice.heads
    ):
        cases += _calls(choice, kernel, head_dim, seq, heads, cc)
    for case in cases:
        case.spec.check(cc)
    return cases


def _calls(choice: Choice, kernel: str, head_dim: int, seq: int, heads: int, cc: str) -> list[Case]:
    seq_k, kv_heads = choice.seq_k or seq, choice.kv_heads or heads
    shape = Shape(choice.batch, heads, kv_heads, seq, seq_k, head_dim, choice.window)
    mask = "window" if choice.window is not None else "causal" if choice.causal else "none"
    if kernel == "flash_fwd":
        both = product(_forward(choice, head_dim, mask, cc), _orders(choice))
        return [Case(spec, shape, order, choice.causal) for spec, order in both]
    if choice.window is not None and kernel != "flash_bwd":
        raise InputError(
            f"`window` {choice.window} is not built for {kernel}; accepted: flash_fwd, flash_bwd"
        )
    if kernel == "flash_bwd":
        return [
            Case(spec, shape, causal=choice.causal) for spec in _backward(choice, head_dim, mask)
        ]
    if kernel == "naive":
        return [
            Case(
                NaiveSpec(head_dim, choice.dtype or "fp16", choice.bypass_l1),
                shape,
                causal=choice.causal,
            )
        ]
    if choice.causal or choice.dtype not in (None, "fp32"):
        raise InputError("minimal is fp32 without a mask; accepted: no `causal`, `dtype` fp32")
    if seq % 32 or seq != seq_k or heads != kv_heads:
        raise InputError(
            f"minimal takes seq_q = seq_k, a multiple of 32, and heads = kv_heads; not {shape}"
        )
    return [Case(MinimalSpec(head_dim), shape)]


def _forward(choice: Choice, head_dim: int, mask: str, cc: str) -> list[FwdSpec]:
    base = TILES.get(head_dim)
    if base is None:
        raise InputError(
            f"`head_dim` {head_dim} is not built; accepted: {', '.join(map(str, TILES))}"
        )
    stages = choice.stages or (1 if cc == "7.5" else base.stages)
    settings: dict[str, Any] = {
        "persistent": choice.persistent,
        "split": choice.splits > 1,
        "stages": stages,
    }
    base = replace(base, mask=mask, dtype=choice.dtype or "fp16", **settings)
    if choice.tile is None and choice.warps is None:
        # the default tiles are those of compute capability 9.0: there they stand as they are
        return [tuned(base, cc) if choice.stages or cc != "9.0" else base]
    sides = choice.tile or ((base.block_q, base.block_k),)
    specs = (replace(base, block_q=block_q, block_k=block_k) for block_q, block_k in sides)
    return [tuned(replace(spec, warps=choice.warps or _warps(spec)), cc) for spec in specs]


def _warps(spec: FwdSpec) -> int:
    """4 warps where they divide the rows and hold the scores in registers, else 8, else 2."""
    holding = (n for n in (4, 8, 2) if live_registers(replace(spec, warps=n)) <= LIVE_LIMIT)
    return next((n for n in holding if spec.block_q % (16 * n) == 0), 4)


def _backward(choice: Choice, head_dim: int, mask: str) -> list[BwdSpec]:
    base = BWD_TILES.get(head_dim)
    if base is None:
        raise InputError(
            f"`head_dim` {head_dim} has no backward; accepted: {', '.join(map(str, BWD_TILES))}"
        )
    base = replace(
        base, mask=mask, dtype=choice.dtype or "fp16", deterministic=choice.deterministic
    )
    tiles = choice.tile or ((base.block_q, base.block_k),)
    return [
        replace(base, block_q=q, block_k=k, warps=choice.warps or max(1, k // 16)) for q, k in tiles
    ]


def _orders(choice: Choice) -> list[Order]:
    heavy = choice.causal if choice.heavy_first is None else choice.heavy_first
    orders = choice.order or ("head" if choice.causal else "query",)
    directions = choice.direction or ("ascending",)
    return [
        Order(o, heavy, choice.section_heads or 0, d, choice.splits)
        for o, d in product(orders, directions)
    ]


def fitted(cases: Sequence[Case], cc: str) -> tuple[list[Case], list[str]]:
    """The calls of a plan as compute capability `cc` can run them, and a line for each that it cannot. Tiles that do
    not fit its shared memory shrink, but for those of a sweep. On 7.5, which has neither bf16 products nor asynchronous
    copies, forward kernels become fp16 with one stage."""
    fitting: list[Case] = []
    reasons: list[str] = []
    for case in cases:
        spec = case.spec
        try:
            if isinstance(spec, FwdSpec) and cc != "9.0":
                spec = replace(spec, dtype="fp16", stages=1) if cc == "7.5" else spec
                # a tile of a sweep is the point of its row: it is refused, not changed
                spec = tuned(spec if case.note == "sweep" else _shrunk(spec, cc), cc)
            elif isinstance(spec, BwdSpec):
                spec = _shrunk_backward(spec, cc)
            elif isinstance(spec, NaiveSpec) and cc == "7.5":
                spec = replace(spec, dtype="fp16")
            spec.check(cc)
        except InputError as reason:
            reasons.append(f"{case.implementation} {case.shape}: {reason}")
            continue
        fitting.append(replace(case, spec=spec))
    return fitting, reasons


def _shared_bytes(cc: str) -> int:
    return shared_bytes_per_cta(cc) or min(
        shared_bytes_per_cta(capability) or 0 for capability in BUILT
    )


def _shrunk(spec: FwdSpec, cc: str) -> FwdSpec:
    """The spec with fewer stages, then shorter key blocks, then shorter query blocks, until it fits."""
    room = _shared_bytes(cc) - STATIC_BYTES_MARGIN
    while spec.dynamic_shared_bytes > room:
        # what costs least first: a stage, then keys per step, then query rows
        if spec.stages > 1:
            spec = replace(spec, stages=spec.stages - 1)
        elif spec.block_k >= 2 * LEAST_BLOCK_K:
            spec = replace(spec, block_k=spec.block_k // 32 * 16)
        elif spec.block_q > 64:
            spec = replace(
                spec, block_q=spec.block_q // 2, warps=min(spec.warps, spec.block_q // 32)
            )
        else:
            break
    return spec


def _shrunk_backward(spec: BwdSpec, cc: str) -> BwdSpec:
    for block_q, block_k in ((spec.block_q, spec.block_k), (64, 128), (64, 64), (32, 64)):
        candidate = replace(spec, block_q=block_q, block_k=block_k, warps=block_k // 16)
        if candidate.dynamic_shared_bytes + STATIC_BYTES_MARGIN <= _shared_bytes(cc):
            return candidate
    return spec


TILES = {
    64: FwdSpec(64, 128, 128, 4, 2, min_ctas=2),
    96: FwdSpec(96, 128, 64, 4, 2, min_ctas=2),
    128: FwdSpec(128, 128, 64, 4, 2, min_ctas=2),
    256: FwdSpec(256, 128, 64, 8, 1),
}
DECODE_TILES = {
    64: FwdSpec(64, 64, 64, 4, 2, split=True, min_ctas=3),
    128: FwdSpec(128, 64, 64, 4, 2, split=True, min_ctas=2),
}
BWD_TILES = {64: BwdSpec(64, 128, 128, 8), 128: BwdSpec(128, 64, 128, 8)}
HEAVY = Order("head", heavy_first=True)
QUICK, SWEEP = "quick", "sweep"


@cache
def groups() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    return read_toml(Path(__file__).with_name("plan.toml"))


def parts() -> tuple[str, ...]:
    return tuple(group for group in groups() if group != QUICK)


def calls(group: str) -> list[Case]:
    candidates = (
        _call({**table, **point})
        for table in groups()[group]
        for point in crossed(table.get("each", ()))
    )
    return [case for case in candidates if case is not None]


def _call(row: Mapping[str, Any]) -> Case | None:
    """The call of a row; None for a tile of a sweep that is not worth building."""
    causal, window, heads = row.get("causal", False), row.get("window"), row["heads"]
    seq_q, seq_k = (row[name] if name in row else row["seq"] for name in ("seq_q", "seq_k"))
    shape = Shape(
        row.get("batch", 1),
        heads,
        row.get("kv_heads", heads),
        seq_q,
        seq_k,
        row["head_dim"],
        window,
    )
    kernel = row.get("kernel", "flash_fwd")
    order = Order(**{f.name: row[f.name] for f in fields(Order) if f.name in row})
    if kernel == "flash_fwd" and causal and "order" not in row:
        order = HEAVY
    spec = _spec(kernel, row, "window" if window is not None else "causal" if causal else "none")
    if row.get("note") == SWEEP:
        assert isinstance(spec, FwdSpec)
        fits = spec.block_q % (16 * spec.warps) == 0 and spec.dynamic_shared_bytes <= 232_000
        if (
            not fits
            or live_registers(spec) > LIVE_LIMIT
            or (spec.stages == 3 and spec.block_k > 64)
        ):
            return None
        spec = tuned(spec, "9.0")
    return Case(spec, shape, order, causal, row.get("note", ""))


def _spec(kernel: str, row: Mapping[str, Any], mask: str) -> Spec:
    d, kind = row["head_dim"], KINDS[kernel]
    if kind in (NaiveSpec, MinimalSpec):
        return kind(d)
    if "block_q" in row:
        return FwdSpec(d, row["block_q"], row["block_k"], row["warps"], row["stages"], mask)
    base: FwdSpec | BwdSpec = (
        BWD_TILES[d] if kind is BwdSpec else (DECODE_TILES if "splits" in row else TILES)[d]
    )
    changes = {name: row[name] for name in ("dtype", "persistent", "deterministic") if name in row}
    return replace(base, mask=mask, **changes)


def named(words: Sequence[str]) -> list[Case]:
    """The calls of plans and groups: `quick`, `full`, or names of groups. Raises InputError where a name is none of
    these."""
    plans = {QUICK: (QUICK,), "full": parts(), **{group: (group,) for group in parts()}}
    for word in words:
        if word not in plans:
            raise InputError(f"`plan` '{word}' is not known; accepted: {', '.join(plans)}")
    return [case for word in words for group in plans[word] for case in calls(group)]
