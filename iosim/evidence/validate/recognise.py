"""Names of profiled kernels: which implementation launched them, and what name and grid say of the problem.

What a name or a grid fixes is a fact (FlashAttention-2's template arguments; CTAs along batch and heads). What they
leave open the user must say (`Given`); nothing is guessed, and what is said must agree with the grid.

Names as CUTLASS, FlashAttention (Dao-AILab/flash-attention, flash_fwd_launch_template.h: template arguments and grids)
and cuDNN compile them; the two last change between versions, and an unknown name is simply not recognised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from iosim.base.records import dataclass, field, fields, replace

Grid = tuple[int, int, int] | None
"""CTAs along the three axes of a launch; None where the profile does not tell them."""
Facts = dict[str, str]
T = TypeVar("T")
MOST_COLUMNS = 65536
OPTIONS = {
    "batch": "--batch",
    "heads": "--heads",
    "seqs": "--seq-len",
    "head_dims": "--head-dim",
    "dtype": "--dtype",
    "causal": "--causal or --no-causal",
}
"""What must be known of a call, by name or grid or by these options."""


@dataclass(frozen=True)
class Given:
    """What the user says of the profiled calls; None, or no length or width, is not said. Of several lengths and head
    dimensions, each launch takes the one that fits its grid and its name."""

    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    seqs: Sequence[int] = ()
    seq_k: int | None = None
    head_dims: Sequence[int] = ()
    dtype: str | None = None
    causal: bool | None = None
    window: int | None = None
    settings: Facts = field(default_factory=dict)
    """Settings of the project's own kernels: block_q, block_k, stages, order, heavy_first, section, direction,
    persistent, splits."""

    def under(self, closer: Given) -> Given:
        """What `closer` says, and of the rest what this says."""
        values = {f.name: getattr(closer, f.name) for f in fields(self)}
        stated = {
            name: value
            for name, value in values.items()
            if value not in (None, ()) and name != "settings"
        }
        return replace(self, **stated, settings={**self.settings, **closer.settings})


class Unknown(Exception):
    """A launch that is not matched; the text is the reason."""


@dataclass(frozen=True)
class Call:
    """A recognised launch: `part` is its name in the model's chain; `follows`, those before it in the same call."""

    implementation: str
    facts: Facts
    part: str = "main"
    follows: tuple[str, ...] = ()


def needs(stated: Given, *names: str) -> None:
    missing = [
        option
        for name, option in OPTIONS.items()
        if name in names and getattr(stated, name) in (None, ())
    ]
    if missing:
        raise Unknown(f"needs {', '.join(missing)}")


def only(values: Sequence[int], fits: Callable[[int], bool], option: str, why: str) -> int:
    if not values:
        raise Unknown(f"needs {option}")
    # a value that was given is taken only where it is the one that the grid or the build allows
    good = [value for value in values if fits(value)]
    if len(good) != 1:
        listed_values = ", ".join(map(str, values))
        raise Unknown(f"{'more than one' if good else 'none'} of {option} {listed_values} {why}")
    return good[0]


def fitting(stated: Given, block: int, tiles: int | None, whole: bool = False) -> int:
    """The given length whose query blocks are as many as the grid has; without a grid, the one that fits the build."""
    why = f"makes the {tiles} query blocks of {block} rows of its grid"
    if tiles is None:
        why = f"fits the build{f' for multiples of {block}' if whole else ''}, and the profile holds no grid"

    def fits(seq: int) -> bool:
        return (tiles is None or -(-seq // block) == tiles) and not (whole and seq % block)

    return only(stated.seqs, fits, "--seq-len", why)


def width_of(stated: Given, low: int, high: int) -> int:
    """The given head dimension that a kernel built for widths above `low` and up to `high` takes."""
    return only(
        stated.head_dims, lambda d: low < d <= high, "--head-dim", f"fits a kernel built for {high}"
    )


def along(grid: Grid, axis: int) -> int | None:
    return None if grid is None else grid[axis]


def needed(name: str, stated: T | None) -> T:
    """What an option says that a grid would tell."""
    if stated is None:
        raise Unknown(f"needs --{name}: the profile holds no grid")
    return stated


def same(name: str, stated: int | None, grid: int | None) -> int:
    if grid is None:
        return needed(name, stated)
    if stated is not None and stated != grid:
        raise Unknown(f"--{name} {stated} is not the {grid} of its grid")
    return grid


def facts_of(stated: Given) -> Facts:
    needs(stated, *OPTIONS)
    if len(stated.seqs) != 1:
        raise Unknown("its grid does not tell which of several lengths it has; give one --seq-len")
    seq, heads, head_dim = stated.seqs[0], stated.heads or 0, width_of(stated, 0, MOST_COLUMNS)
    kv = stated.kv_heads if stated.kv_heads is not None else heads
    if heads % kv:
        raise Unknown(f"--kv-heads {kv} does not divide its {heads} heads")
    facts = {
        "batch": stated.batch,
        "heads": heads,
        "kv_heads": kv,
        "seq_q": seq,
        "seq_k": stated.seq_k or seq,
    }
    facts |= {"head_dim": head_dim, "causal": int(bool(stated.causal)), "window": stated.window}
    return {name: "" if value is None else str(value) for name, value in facts.items()} | {
        "dtype": str(stated.dtype)
    }


# Names

CUT_SHORT = "its name is cut short; profile with whole names"
TYPES = {"bfloat16_t": "bf16", "half_t": "fp16", "bf16": "bf16", "f16": "fp16", "f32": "fp32"}
_TRAITS = re.compile(r"Flash_(?:fwd|bwd)_kernel_traits<([^<>]*)")
_CUTLASS = re.compile(r"fmha_cutlass[FB]_(bf16|f16|f32)_\w*?(\d+)x(\d+)_(?:k(\d+)_)?")
FORWARD_FLAGS = ("dropout", "causal", "local", "alibi", "even_rows", "even_columns")
"""Truth values behind the traits, in order; (Is_softcap,) and Return_softmax follow."""
SPLIT_FLAGS = ("causal", "local", "alibi", "even_rows", "even_columns")
"""(Is_softcap,) Split and Append_KV follow."""
LEAST_FLAGS = 7


def _arguments(text: str) -> list[str]:
    """Template arguments between commas, without C-style casts: "(int)128" -> "128"."""
    return [re.sub(r"\(\w+\)", "", part).strip() for part in text.split(",")]


def _flags(name: str) -> list[bool]:
    """The truth values behind the traits in a kernel's template arguments, in order."""
    depth = 0
    # the traits nest: their closing bracket is where the depth is zero again; the flags follow it
    for at in range(name.index("_kernel_traits<"), len(name)):
        depth += (name[at] == "<") - (name[at] == ">")
        if depth == 0 and name[at] == ">":
            words = _arguments(name[at + 1 :].partition(">")[0])
            flags = [w in ("true", "1") for w in words if w in ("true", "false", "0", "1")]
            # a profiler that cuts names off may leave some flags: those would be read as others
            if len(flags) >= LEAST_FLAGS and ">" in name[at + 1 :]:
                return flags
    raise Unknown(CUT_SHORT)


def _traits(name: str, stated: Given) -> tuple[int, int, Given]:
    """(widest head_dim, block_q) of FlashAttention-2's template, and what is known with its type."""
    traits = _TRAITS.search(name)
    words = _arguments(traits[1]) if traits else []
    if len(words) < 7 or not all(w.isdigit() for w in words[:4]):
        raise Unknown(CUT_SHORT)
    stated = stated.under(
        Given(dtype=next((TYPES[w] for w in ("bfloat16_t", "half_t") if w in name), None))
    )
    needs(stated, "dtype")
    return int(words[0]), int(words[1]), stated


def _flash(name: str, grid: Grid, stated: Given) -> Given:
    """grid: query blocks, batch, heads (run_flash_fwd); with split keys query blocks, splits, batch x heads."""
    width, block_q, stated = _traits(name, stated)
    split = "splitkv" in name
    values = _flags(name)
    flags = dict(zip(SPLIT_FLAGS if split else FORWARD_FLAGS, values, strict=False))
    # even columns: the head dimension is the template's width; else one that is given and not above it
    head_dim = width if flags["even_columns"] else width_of(stated, 0, width)
    if flags["local"] and stated.window is None:
        raise Unknown("has a sliding window; needs --window")
    if not flags["local"] and stated.window is not None:
        raise Unknown(f"is built without the window of --window {stated.window}")
    seq = fitting(stated, block_q, along(grid, 0), whole=not split and flags["even_rows"])
    # Split is the last flag but one: the third axis is then batch x heads
    if split and values[-2]:
        batch, heads = _both(along(grid, 2), stated, packed=seq == 1)
    else:
        batch, heads = (
            same("batch", stated.batch, along(grid, 1)),
            same("heads", stated.heads, along(grid, 2)),
        )
    return replace(
        stated, batch=batch, heads=heads, seqs=(seq,), head_dims=(head_dim,), causal=flags["causal"]
    )


def _both(product: int | None, stated: Given, packed: bool) -> tuple[int, int]:
    """Batch and heads of a grid that has only their product; a group of heads may be packed into one tile's rows."""
    batch, heads = stated.batch, stated.heads
    if product is None:
        return needed("batch", batch), needed("heads", heads)
    if batch is None and heads is None:
        raise Unknown(f"needs --batch or --heads: its grid has their product {product} only")
    # the one that is not given follows; the product is checked below
    batch = batch if batch is not None else product // (heads or 1)
    heads = heads if heads is not None else product // batch
    # one query with grouped heads: a group's queries are rows of one tile, so the grid has key/value heads
    grid_heads = stated.kv_heads if packed and stated.kv_heads is not None else heads
    if batch * grid_heads != product:
        raise Unknown(f"--batch {batch} and --heads {heads} do not make the {product} of its grid")
    return batch, heads


def _flash_backward(name: str, grid: Grid, stated: Given) -> Given:
    """grid: query blocks, batch, heads."""
    width, block_q, stated = _traits(name, stated)
    needs(stated, "seqs", "causal")
    head_dim = width_of(stated, 0, width) if stated.head_dims else width
    seq = fitting(stated, block_q, along(grid, 0))
    batch, heads = (
        same("batch", stated.batch, along(grid, 1)),
        same("heads", stated.heads, along(grid, 2)),
    )
    return replace(stated, batch=batch, heads=heads, seqs=(seq,), head_dims=(head_dim,))


def _cutlass(name: str, grid: Grid, stated: Given) -> Given:
    """fmha_cutlassF_bf16_aligned_64x128_rf_sm80; grid: query blocks, heads, batch. fmha_cutlassB_bf16_aligned_
    64x64_k64_sm80; grid: CTAs that share a head's keys, heads, batch."""
    match, backward = _CUTLASS.search(name), "cutlassB" in name
    if not match or backward != (match[4] is not None):
        raise Unknown(CUT_SHORT)
    needs(stated, "seqs", "head_dims", "causal")
    batch, heads = (
        same("batch", stated.batch, along(grid, 2)),
        same("heads", stated.heads, along(grid, 1)),
    )
    stated = replace(stated, batch=batch, heads=heads, dtype=TYPES[match[1]])
    if backward:
        width_of(stated, 0, int(match[4]))
        return stated
    # 64x128 in the name: query rows by key columns of its tile
    seq, columns = fitting(stated, int(match[2]), along(grid, 0)), int(match[3])
    head_dim = width_of(
        # _rf_ keeps the output in registers, as wide as the tile at most; else it goes through memory
        stated,
        0 if columns <= 64 else 64,
        columns if "_rf_" in name else MOST_COLUMNS,
    )
    return replace(stated, seqs=(seq,), head_dims=(head_dim,))


def _own_forward(name: str, grid: Grid, stated: Given) -> Given:
    """grid: query blocks x splits x heads x batch; or, where persistent, as many CTAs as fit."""
    needs(stated, *OPTIONS)
    s = stated.settings
    if not s.get("block_q"):
        raise Unknown("needs --tile")
    # a one-dimensional grid: what is left of it after batch, heads and splits is query blocks
    ctas_per_block = int(stated.batch or 0) * int(stated.heads or 0) * int(s.get("splits") or 1)
    if s.get("persistent") == "1" or grid is None:
        return stated
    if grid[0] % ctas_per_block:
        raise Unknown(f"--batch, --heads and --splits do not make the {grid[0]} CTAs of its grid")
    return replace(stated, seqs=(fitting(stated, int(s["block_q"]), grid[0] // ctas_per_block),))


SM90_SCHEDULES = {"static": "one_tile", "persistent": "static", "dynamic": "dynamic"}
"""--scheduler -> what `flash_fwd_sm90` calls it."""
SM90_ROWS = 64
"""Query rows of a warpgroup that computes."""


def _own_sm90(name: str, grid: Grid, stated: Given) -> Given:
    """flash_fwd_sm90; grid: query blocks of all heads and batches, or as many CTAs as there are SMs."""
    needs(stated, *OPTIONS)
    s = stated.settings
    rows = int(s.get("block_q") or 0)
    if not rows or rows % SM90_ROWS:
        raise Unknown(f"needs --tile, query rows in {SM90_ROWS}s")
    facts = facts_of(stated)
    # how it is scheduled shows in the grid: a CTA a tile (in whole clusters), or fewer CTAs than tiles
    tiles = -(-int(facts["seq_q"]) // rows) * int(facts["batch"]) * int(facts["heads"])
    cluster = int(s.get("cluster") or 1)
    schedule = SM90_SCHEDULES[s["scheduler"]] if s.get("scheduler") else None
    if grid is None:
        schedule = SM90_SCHEDULES[needed("scheduler", s.get("scheduler"))]
    elif schedule == "one_tile" and grid[0] != -(-tiles // cluster) * cluster:
        raise Unknown(f"--batch, --heads and --tile do not make the {grid[0]} CTAs of its grid")
    elif schedule is None:
        schedule = "one_tile" if grid[0] >= tiles else "dynamic"
    blocks = (
        "fold" if s.get("fold") == "1" else "heavy_first" if s.get("heavy_first") == "1" else ""
    )
    return replace(
        stated,
        settings={
            "consumers": str(rows // SM90_ROWS),
            "block_k": s["block_k"],
            "stages": s.get("stages", ""),
            "schedule": schedule,
            "cluster": str(cluster),
            "order": s.get("order", ""),
            "blocks": blocks,
            "section_heads": s.get("section", ""),
            "direction": s.get("direction", ""),
        },
    )


@dataclass(frozen=True)
class Meaning:
    """What a name means: the implementation, the launch of its call, those before it, which tell of the problem, and
    else what reads name and grid."""

    implementation: str
    part: str = "main"
    follows: tuple[str, ...] = ()
    reads: Callable[[str, Grid, Given], Given] = lambda name, grid, stated: stated
    """By default nothing of the grid: a kernel whose CTAs take tiles from a list says nothing of the problem there."""
    settings: bool = False
    """True where the settings that are given are facts of it."""


FLASH, FLASH_BACKWARD = "pytorch_flash", "pytorch_flash_backward"
KERNELS: tuple[tuple[str, Meaning], ...] = (
    (r"flash_fwd_splitkv_combine_kernel", Meaning(FLASH, "combine", ("main",))),
    (r"flash_fwd_splitkv_kernel", Meaning(FLASH, reads=_flash)),
    (r"flash_fwd_kernel\b", Meaning(FLASH, reads=_flash)),
    (r"flash_bwd_dot_do_o_kernel", Meaning(FLASH_BACKWARD, "bwd.dot", reads=_flash_backward)),
    (r"flash_bwd_dq_dk_dv_loop\w*_kernel", Meaning(FLASH_BACKWARD, "bwd.main", ("bwd.dot",))),
    (
        r"flash_bwd_convert_dq_kernel",
        Meaning(FLASH_BACKWARD, "bwd.convert", ("bwd.dot", "bwd.main")),
    ),
    (r"fmha_cutlassF_", Meaning("pytorch_mem_efficient", reads=_cutlass)),
    (r"fmha_cutlassB_", Meaning("pytorch_mem_efficient_backward", "bwd.main", reads=_cutlass)),
    (r"cudnn_\w*sdpa_sm90_flash_fprop_wgmma", Meaning("cudnn")),
    (r"FlashAttnFwdSm90", Meaning("fa3")),
    (r"triton_tem_fused_flex_attention_\d+$", Meaning("pytorch_flex")),
    (r"^flash_fwd$", Meaning("flash_fwd", reads=_own_forward, settings=True)),
    (r"^flash_fwd_sm90$", Meaning("flash_fwd_sm90", reads=_own_sm90, settings=True)),
    (r"^flash_combine$", Meaning("flash_fwd", "combine", ("main",))),
    (r"^naive_scores$", Meaning("naive", "scores")),
    (r"^naive_softmax$", Meaning("naive", "softmax", ("scores",))),
    (r"^naive_values$", Meaning("naive", "values", ("scores", "softmax"))),
    (
        r"^minimal_fwd$",
        Meaning("minimal", reads=lambda name, grid, stated: replace(stated, dtype="fp32")),
    ),
)
"""Patterns of kernel names, the first that matches wins."""


def whole_call(recognised: Call, stated: Given) -> Call:
    """A launch that belongs to others before it, by itself: what they would tell of the problem must be given.
    Raises Unknown where it is not."""
    return (
        recognised
        if recognised.facts
        else Call(
            recognised.implementation, {**facts_of(stated), **stated.settings}, recognised.part
        )
    )


def recognise(name: str, grid: Grid, stated: Given) -> Call:
    """What launched a kernel. Raises Unknown where no pattern fits, or what is given is not enough or does not fit."""
    kernel = next((kernel for pattern, kernel in KERNELS if re.search(pattern, name)), None)
    if kernel is None:
        raise Unknown("no catalog kernel has this name")
    facts: Facts = {}
    # a launch that follows others takes the facts of the call's first
    if not kernel.follows:
        stated = kernel.reads(name, grid, stated)
        facts = facts_of(stated) | (stated.settings if kernel.settings else {})
    return Call(kernel.implementation, facts, kernel.part, kernel.follows)
