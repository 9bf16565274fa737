"""Names of profiled kernels: which implementation launched them, and what name and grid say of the problem.

What a name or a grid fixes is a fact (FlashAttention-2's template arguments; CTAs along batch and heads). What they
leave open must be given (`Given`); nothing is guessed, and what is given must agree with the grid.

Names as CUTLASS, FlashAttention (Dao-AILab/flash-attention, flash_fwd_launch_template.h: template arguments and grids)
and cuDNN compile them; the two last change between versions, and an unknown name is simply not recognised.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from iosim.evidence.validate.given import (
    Call,
    Facts,
    Given,
    Triple,
    Unknown,
    fitting,
    need,
    needs,
    problem_facts,
    same,
    width_of,
)

# FlashAttention-2

CUT_SHORT = "its name is cut short; profile with whole names"
FORWARD_FLAGS = 7
"""Is_dropout, Is_causal, Is_local, Has_alibi, Is_even_MN, Is_even_K, (Is_softcap,) Return_softmax."""
SPLIT_FLAGS = 7
"""Is_causal, Is_local, Has_alibi, Is_even_MN, Is_even_K, (Is_softcap,) Split, Append_KV."""
_TRAITS = re.compile(r"Flash_(?:fwd|bwd)_kernel_traits<([^<>]*)")
_ELEMENTS = {"bfloat16_t": "bf16", "half_t": "fp16"}


def _arguments(text: str) -> list[str]:
    """Template arguments between commas, without C-style casts: "(int)128" -> "128"."""
    return [re.sub(r"\(\w+\)", "", part).strip() for part in text.split(",")]


def _flags(name: str, least: int) -> list[bool]:
    """The truth values behind the traits in a kernel's template arguments, in order."""
    depth = 0
    for at in range(name.index("_kernel_traits<"), len(name)):
        depth += (name[at] == "<") - (name[at] == ">")
        if depth == 0 and name[at] == ">":
            words = _arguments(name[at + 1 :].partition(">")[0])
            flags = [w in ("true", "1") for w in words if w in ("true", "false", "0", "1")]
            if len(flags) >= least and ">" in name[at + 1 :]:
                return flags
    raise Unknown(CUT_SHORT)


def _fa2_traits(name: str, stated: Given) -> tuple[int, int, int, str]:
    """(widest head_dim, block_q, block_k, dtype) of the template."""
    traits = _TRAITS.search(name)
    words = _arguments(traits[1]) if traits else []
    if len(words) < 7 or not all(w.isdigit() for w in words[:4]):
        raise Unknown(CUT_SHORT)
    element = next((d for w, d in _ELEMENTS.items() if w in name), None)
    return int(words[0]), int(words[1]), int(words[2]), element or need(stated.dtype, "--dtype")


def _fa2_forward(name: str, grid: Triple, stated: Given) -> Call:
    """grid: query blocks, batch, heads (run_flash_fwd)."""
    width, block_q, _, dtype = _fa2_traits(name, stated)
    flags = _flags(name, FORWARD_FLAGS)
    head_dim = width if flags[5] else width_of(stated, 0, width)
    _check_local(flags[2], stated)
    seq, causal = fitting(stated, block_q, grid[0], whole=flags[4]), flags[1]
    batch, heads = same("batch", stated.batch, grid[1]), same("heads", stated.heads, grid[2])
    facts = problem_facts(stated, batch=batch, heads=heads, seq=seq, head_dim=head_dim, dtype=dtype, causal=causal)
    return Call("pytorch_flash", facts)


def _check_local(local: bool, stated: Given) -> None:
    if local and stated.window is None:
        raise Unknown("has a sliding window; needs --window")
    if not local and stated.window is not None:
        raise Unknown(f"is built without the window of --window {stated.window}")


def _fa2_split(name: str, grid: Triple, stated: Given) -> Call:
    """grid: query blocks, splits, batch x heads; or, with one split, query blocks, batch, heads."""
    width, block_q, _, dtype = _fa2_traits(name, stated)
    flags = _flags(name, SPLIT_FLAGS)
    head_dim = width if flags[4] else width_of(stated, 0, width)
    _check_local(flags[1], stated)
    seq = fitting(stated, block_q, grid[0])
    if not flags[-2]:
        batch, heads = same("batch", stated.batch, grid[1]), same("heads", stated.heads, grid[2])
    else:
        batch, heads = _both(grid[2], stated, packed=seq == 1)
    facts = problem_facts(stated, batch=batch, heads=heads, seq=seq, head_dim=head_dim, dtype=dtype, causal=flags[0])
    return Call("pytorch_flash", facts)


def _both(product: int, stated: Given, packed: bool) -> tuple[int, int]:
    """Batch and heads of a grid that has only their product; a group of heads may be packed into one tile's rows."""
    batch, heads = stated.batch, stated.heads
    if batch is None and heads is None:
        raise Unknown(f"needs --batch or --heads: its grid has their product {product} only")
    batch = batch if batch is not None else product // (heads or 1)
    heads = heads if heads is not None else product // batch
    each = stated.kv_heads if packed and stated.kv_heads is not None else heads
    if batch * each != product:
        raise Unknown(f"--batch {batch} and --heads {heads} do not make the {product} of its grid")
    return batch, heads


def _fa2_combine(name: str, grid: Triple, stated: Given) -> Call:
    return Call("pytorch_flash", {}, "combine", ("main",))


def _fa2_backward(part: str, follows: tuple[str, ...]) -> Callable[[str, Triple, Given], Call]:
    def made(name: str, grid: Triple, stated: Given) -> Call:
        if follows:
            return Call("pytorch_flash_backward", {}, part, follows)
        width, block_q, _, dtype = _fa2_traits(name, stated)
        needs(stated, "seqs", "causal")
        head_dim = width_of(stated, 0, width) if stated.head_dims else width
        seq = fitting(stated, block_q, grid[0])
        batch, heads = same("batch", stated.batch, grid[1]), same("heads", stated.heads, grid[2])
        causal = bool(stated.causal)
        facts = problem_facts(stated, batch=batch, heads=heads, seq=seq, head_dim=head_dim, dtype=dtype, causal=causal)
        return Call("pytorch_flash_backward", facts, part)

    return made


# CUTLASS, cuDNN, FlashAttention-3, flex

MOST_COLUMNS = 65536


def _cutlass(name: str, grid: Triple, stated: Given) -> Call:
    """fmha_cutlassF_bf16_aligned_64x128_rf_sm80; grid: query blocks, heads, batch."""
    match = re.search(r"fmha_cutlassF_(bf16|f16|f32)_\w*?(\d+)x(\d+)_", name)
    if not match:
        raise Unknown(CUT_SHORT)
    needs(stated, "seqs", "head_dims", "causal")
    batch, heads = same("batch", stated.batch, grid[2]), same("heads", stated.heads, grid[1])
    dtype = {"bf16": "bf16", "f16": "fp16", "f32": "fp32"}[match[1]]
    seq = fitting(stated, int(match[2]), grid[0])
    columns = int(match[3])
    head_dim = width_of(stated, 0 if columns <= 64 else 64, columns if "_rf_" in name else MOST_COLUMNS)
    facts = problem_facts(stated, batch=batch, heads=heads, seq=seq, head_dim=head_dim, dtype=dtype,
                     causal=bool(stated.causal))  # fmt: skip
    return Call("pytorch_mem_efficient", facts)


def _cutlass_backward(name: str, grid: Triple, stated: Given) -> Call:
    """fmha_cutlassB_bf16_aligned_64x64_k64_sm80; grid: CTAs that share a head's keys, heads, batch."""
    match = re.search(r"fmha_cutlassB_(bf16|f16|f32)_\w*?\d+x\d+_k(\d+)_", name)
    if not match:
        raise Unknown(CUT_SHORT)
    same("batch", stated.batch, grid[2]), same("heads", stated.heads, grid[1])
    dtype = {"bf16": "bf16", "f16": "fp16", "f32": "fp32"}[match[1]]
    stated = stated.under(Given(batch=grid[2], heads=grid[1], dtype=dtype))
    needs(stated, "seqs", "head_dims", "causal")
    width_of(stated, 0, int(match[2]))
    return Call("pytorch_mem_efficient_backward", _all_given(stated), "bwd.main")


def _told(implementation: str) -> Callable[[str, Triple, Given], Call]:
    """A kernel whose CTAs take tiles from a list: its grid says nothing of the problem."""

    def made(name: str, grid: Triple, stated: Given) -> Call:
        needs(stated, "batch", "heads", "seqs", "head_dims", "dtype", "causal")
        return Call(implementation, _all_given(stated))

    return made


def _all_given(stated: Given) -> Facts:
    if len(stated.seqs) != 1:
        raise Unknown("its grid does not tell which of several lengths it has; give one --seq-len")
    return problem_facts(
        stated, batch=int(stated.batch or 0), heads=int(stated.heads or 0), seq=stated.seqs[0],
        head_dim=width_of(stated, 0, MOST_COLUMNS), dtype=str(stated.dtype), causal=bool(stated.causal),
    )  # fmt: skip


# The project's own


def _own_forward(name: str, grid: Triple, stated: Given) -> Call:
    """grid: query blocks x splits x heads x batch; or, where persistent, as many CTAs as fit."""
    needs(stated, "batch", "heads", "seqs", "head_dims", "dtype", "causal")
    s = stated.settings
    if not s.get("block_q"):
        raise Unknown("needs --tile")
    each = int(stated.batch or 0) * int(stated.heads or 0) * int(s.get("splits") or 1)
    if s.get("persistent") != "1":
        if grid[0] % each:
            raise Unknown(f"--batch, --heads and --splits do not make the {grid[0]} CTAs of its grid")
        seq = fitting(stated, int(s["block_q"]), grid[0] // each)
        stated = Given(**{**vars(stated), "seqs": (seq,)})
    return Call("flash_fwd", {**_all_given(stated), **s})


SM90_SCHEDULES = {"static": "one_tile", "persistent": "static", "dynamic": "dynamic"}
"""--scheduler -> what `flash_fwd_sm90` calls it."""
SM90_ROWS = 64
"""Query rows of a warpgroup that computes."""


def _own_sm90(name: str, grid: Triple, stated: Given) -> Call:
    """flash_fwd_sm90; grid: query blocks of all heads and batches, or as many CTAs as there are SMs."""
    needs(stated, "batch", "heads", "seqs", "head_dims", "dtype", "causal")
    s = stated.settings
    rows = int(s.get("block_q") or 0)
    if not rows or rows % SM90_ROWS:
        raise Unknown(f"needs --tile, query rows in {SM90_ROWS}s")
    facts = _all_given(stated)
    tiles = -(-int(facts["seq_q"]) // rows) * int(facts["batch"]) * int(facts["heads"])
    cluster = int(s.get("cluster") or 1)
    schedule = SM90_SCHEDULES[s["scheduler"]] if s.get("scheduler") else None
    if schedule == "one_tile" and grid[0] != -(-tiles // cluster) * cluster:
        raise Unknown(f"--batch, --heads and --tile do not make the {grid[0]} CTAs of its grid")
    if schedule is None:
        schedule = "one_tile" if grid[0] >= tiles else "dynamic"
    blocks = "fold" if s.get("fold") == "1" else "heavy_first" if s.get("heavy_first") == "1" else ""
    return Call("flash_fwd_sm90", {
        **facts, "consumers": str(rows // SM90_ROWS), "block_k": s["block_k"], "stages": s.get("stages", ""),
        "schedule": schedule, "cluster": str(cluster), "order": s.get("order", ""), "blocks": blocks,
        "section_heads": s.get("section", ""), "direction": s.get("direction", ""),
    })  # fmt: skip


def _own_part(implementation: str, part: str, follows: tuple[str, ...]) -> Callable[[str, Triple, Given], Call]:
    def made(name: str, grid: Triple, stated: Given) -> Call:
        if follows:
            return Call(implementation, {}, part, follows)
        needs(stated, "batch", "heads", "seqs", "head_dims", "causal")
        dtype = "fp32" if implementation == "minimal" else need(stated.dtype, "--dtype")
        return Call(implementation, _all_given(Given(**{**vars(stated), "dtype": dtype})), part)

    return made


KERNELS: tuple[tuple[str, Callable[[str, Triple, Given], Call]], ...] = (
    (r"flash_fwd_splitkv_combine_kernel", _fa2_combine),
    (r"flash_fwd_splitkv_kernel", _fa2_split),
    (r"flash_fwd_kernel\b", _fa2_forward),
    (r"flash_bwd_dot_do_o_kernel", _fa2_backward("bwd.dot", ())),
    (r"flash_bwd_dq_dk_dv_loop\w*_kernel", _fa2_backward("bwd.main", ("bwd.dot",))),
    (r"flash_bwd_convert_dq_kernel", _fa2_backward("bwd.convert", ("bwd.dot", "bwd.main"))),
    (r"fmha_cutlassF_", _cutlass),
    (r"fmha_cutlassB_", _cutlass_backward),
    (r"cudnn_\w*sdpa_sm90_flash_fprop_wgmma", _told("cudnn")),
    (r"FlashAttnFwdSm90", _told("fa3")),
    (r"triton_tem_fused_flex_attention_\d+$", _told("pytorch_flex")),
    (r"^flash_fwd$", _own_forward),
    (r"^flash_fwd_sm90$", _own_sm90),
    (r"^flash_combine$", _own_part("flash_fwd", "combine", ("main",))),
    (r"^naive_scores$", _own_part("naive", "scores", ())),
    (r"^naive_softmax$", _own_part("naive", "softmax", ("scores",))),
    (r"^naive_values$", _own_part("naive", "values", ("scores", "softmax"))),
    (r"^minimal_fwd$", _own_part("minimal", "main", ())),
)
"""Patterns of kernel names, the first that matches wins."""


def whole_call(found: Call, stated: Given) -> Call:
    """A launch that belongs to others before it, by itself: what they would tell of the problem must be given.

    Raises:
        Unknown: it is not.
    """
    if found.facts:
        return found
    needs(stated, "batch", "heads", "seqs", "head_dims", "dtype", "causal")
    return Call(found.implementation, {**_all_given(stated), **stated.settings}, found.part)


def recognise(name: str, grid: Triple, stated: Given) -> Call:
    """What launched a kernel.

    Raises:
        Unknown: no pattern fits, or what is given is not enough or does not fit.
    """
    for pattern, reader in KERNELS:
        if re.search(pattern, name):
            return reader(name, grid, stated)
    raise Unknown("no catalog kernel has this name")
