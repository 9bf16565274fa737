"""What library kernels decide at launch by a rule rather than a table: splits, schedules, PyTorch's choice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from iosim.base.errors import InputError
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.algorithms import options_for
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.libraries import hopper, inference, shared_values
from iosim.kernel.libraries.features import SCORE_TENSORS
from iosim.kernel.libraries.loader import Entry
from iosim.kernel.options import AlgorithmOptions
from iosim.kernel.schedule import Order, Schedule, Scheduler, Start
from iosim.problem.attention import AttentionProblem

MAX_SPLITS = 128
MAX_SPLIT_ROWS = 1 << 24
SPLIT_EFFICIENCY = 0.85
CUDNN_MOST_SPLITS = 64
FEW_TILES = 0.8


def fa2_splits(tiles: int, key_blocks: int, machine_width: int) -> int:
    """FlashAttention-2's number of KV splits (csrc/flash_attn/flash_api.cpp, num_splits_heuristic).

    1 when the tiles nearly fill the machine; else the fewest splits within 85 % of the best wave efficiency, among
    those that change the number of key blocks a split gets.
    """
    if tiles >= FEW_TILES * machine_width:
        return 1
    most = min(MAX_SPLITS, machine_width, key_blocks)

    def eligible(s: int) -> bool:
        return s == 1 or -(-key_blocks // s) != -(-key_blocks // (s - 1))

    def efficiency(s: int) -> float:
        waves = tiles * s / machine_width
        return waves / -(-tiles * s // machine_width)

    candidates = [s for s in range(1, most + 1) if eligible(s)]
    best = max(efficiency(s) for s in candidates)
    return next(s for s in candidates if efficiency(s) >= SPLIT_EFFICIENCY * best)


def _split_rows(data: Entry, problem: AttentionProblem) -> tuple[int, int]:
    """(rows, heads) of the grid of the split kernel, with a group's query heads packed into rows where it packs."""
    if inference.packs_group(data, problem, 1, 1, 1):
        return problem.seq_q * problem.group, problem.kv_heads
    return problem.seq_q, problem.heads


def splits(data: Entry, problem: AttentionProblem, profile: HardwareProfile, asked: int | None) -> tuple[int, bool]:
    """(number of splits, whether the split kernel's tiles are used)."""
    if asked is not None:
        _check_splits(data, problem, asked)
        return asked, (asked > 1 or problem.page_size is not None) and "split_tile" in data
    if "split_tile" not in data or not problem.forward or problem.dropout > 0 or problem.passes != "fwd":
        return 1, False
    if problem.seq_lens is not None:  # flash_api.cpp, mha_varlen_fwd: num_splits stays 0 where the cache has no pages
        return 1, False
    rule = data.get("tile_choice")
    rows, heads = _split_rows(data, problem)
    width = max(problem.head_dim, problem.head_dim_v)
    table = [r for r in data["split_tile"] if width <= r["head_dim"]]
    if not table:
        return 1, False
    block_q, block_k = table[0]["block_q"], table[0]["block_k"]
    key_blocks = -(-problem.seq_k // block_k)
    tiles = problem.batch * heads * -(-rows // block_q)
    sms = int(profile.need("sm_count"))
    if rule == "fa2":
        n = fa2_splits(tiles, key_blocks, 2 * sms)
        # A paged cache has the split kernel's tiles even with one split (flash_api.cpp, force_split_kernel).
        return n, n > 1 or problem.page_size is not None
    if rule == "cudnn" and problem.seq_q == 1:
        return cudnn_splits(tiles, key_blocks, 2 * sms), True
    return 1, False


def _check_splits(data: Entry, problem: AttentionProblem, asked: int) -> None:
    if isinstance(asked, bool) or asked < 1:
        raise InputError(f"`splits` {asked} is out of range; accepted: 1 or more")
    if asked == 1:
        return
    if data["algorithm"] not in ("flash", "mla"):
        raise InputError(f"`splits` {asked}: kernel {data['name']} does not split its keys; accepted: 1")
    if not problem.forward:
        raise InputError(f"`splits` {asked} contradicts `passes` {problem.passes}: only a forward splits its keys; "
                         "accepted: 1")  # fmt: skip
    rows = problem.batch * problem.heads * problem.seq_q
    if rows > MAX_SPLIT_ROWS:
        raise InputError(f"`splits` {asked} with {rows} query rows is out of range; accepted: up to {MAX_SPLIT_ROWS} "
                         "rows (batch x heads x tokens)")  # fmt: skip


def cudnn_splits(tiles: int, key_blocks: int, slots: int) -> int:
    """cuDNN's splits for one query token: the largest power of two, up to 64, whose CTAs fit the machine at two an SM;
    1 where the tiles alone nearly fill the SMs.

    Inferred from eleven recorded calls, not published: 2 and 4 tiles have 64 splits, 8 have 32, 32 have 8, 64 have 4,
    and 128 have 1. That "nearly" is 80 %, as in FlashAttention's rules, is a guess between 64 and 128 tiles of 132 SMs.
    """
    if tiles >= FEW_TILES * slots / 2:
        return 1
    n = 1
    while 2 * n * tiles <= slots and 2 * n <= min(key_blocks, CUDNN_MOST_SPLITS):
        n *= 2
    return n


def schedule(data: Entry, problem: AttentionProblem, base: Schedule, splits: int = 1) -> Schedule:
    """The schedule a library sets by problem: FlashAttention-3's dynamic, sectioned one under a mask, and a CTA a tile
    with splits (hopper/flash_fwd_launch_template.h, UsePersistentScheduler)."""
    if data.get("tile_choice") == "fa3" and splits > 1:
        return replace(base, scheduler=Scheduler.STATIC)
    if data["name"] == "cudnn" and problem.seq_q == 1 and problem.passes == "fwd":  # as recorded grids say
        return replace(base, scheduler=Scheduler.STATIC)
    if data.get("tile_choice") != "fa3" or problem.mask == "none":
        return base
    return replace(
        base,
        order=Order.HEAD,
        start=Start.HEAVY_FIRST,
        scheduler=Scheduler.DYNAMIC,
        section_heads=fa3_section_heads(problem),
    )


def fa3_section_heads(problem: AttentionProblem, budget_bytes: int = 32 << 20) -> int:
    """Query heads per section: 2^floor(log2(budget / bytes of one head's K and V)), at least one, times the group.

    FlashAttention-3, hopper/tile_scheduler.hpp 218-314: 32 MiB forward, 40 MiB backward.
    """
    one = problem.seq_k * (problem.head_dim + problem.head_dim_v) * problem.input_type.bytes
    fits = max(1, budget_bytes // one)
    return int(1 << (fits.bit_length() - 1)) * problem.group


def options(data: Entry, profile: HardwareProfile, split: bool, append_kv: bool) -> AlgorithmOptions:
    """The kernel's options: its file's, plus what only this GPU or this launch decides."""
    made: dict[str, Any] = dict(data["kernel"].get("options", {}))
    if data["algorithm"] in ("naive", "math", "uniform_naive"):
        made["sm_count"] = int(profile.need("sm_count"))
    if split and data["name"] == "cudnn":
        made |= {"statistics_per_row": 2, "combine_rows": 1, "combine_threads": 256}
    if append_kv:
        made |= inference.append(data)
    return options_for(data["algorithm"], made)


def notes(data: Entry, problem: AttentionProblem, compiled: int | None) -> tuple[str, ...]:
    """What a reader of the prediction should know of the kernel."""
    made = []
    if data.get("inferred"):
        made.append(f"{data['name']}: inferred from measurements, not published: {', '.join(data['inferred'])}")
    if data.get("assumed"):
        made.append(f"{data['name']}: assumed: {'; '.join(data['assumed'])}")
    widest = max(problem.head_dim, problem.head_dim_v)
    if compiled is not None and compiled != widest:
        made.append(f"{data['name']}: head_dim {widest} runs on the kernel compiled for {compiled}; true columns only "
                    "are read")  # fmt: skip
    return tuple(made)


def tile(data: Entry, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
    """Tiles that a rule gives: Algorithm 1's own choice from the size of the fast memory, or halved until they fit."""
    if data.get("tile_choice") == "fits":
        return replace(kernel, tile=fitting(kernel.tile, problem, profile))
    if data.get("tile_choice") == "fa3":
        return hopper.at_launch(kernel, problem, fa3_section_heads(problem, hopper.BACKWARD_SECTION_BYTES))
    if data.get("tile_choice") == "uniform":
        return shared_values.fitting(kernel, problem, profile)
    if data.get("tile_choice") != "flash1":
        return kernel
    elements = int(profile.need("shared_memory_per_block_optin_bytes")) // problem.input_type.bytes
    block_k = min(max(1, -(-elements // (4 * problem.head_dim))), problem.seq_k, 4096)
    block_q = min(block_k, problem.head_dim)
    note = f"Algorithm 1 with M = {elements} elements: block_k = ceil(M / 4d) = {block_k}, block_q = {block_q}"
    chosen = Tile(block_q, block_k, kernel.tile.warps, kernel.tile.stages)
    return replace(kernel, tile=chosen, notes=(*kernel.notes, note))


def fitting(tile: Tile, problem: AttentionProblem, profile: HardwareProfile) -> Tile:
    """`tile`, its larger side halved (down to 16) while its operands need more shared memory than a CTA may have."""
    allowed = profile.shared_memory_per_block_optin_bytes
    block_q, block_k = tile.block_q, tile.block_k
    while allowed is not None and max(block_q, block_k) > 16:
        key_columns = problem.head_dim + (0 if problem.latent_kv else problem.head_dim_v)
        rows = block_q * problem.head_dim + tile.stages * block_k * key_columns
        rows += block_q * block_k if problem.latent_kv else 0
        if rows * problem.input_type.bytes <= allowed:
            break
        if block_k >= block_q:
            block_k //= 2
        else:
            block_q //= 2
    return Tile(block_q, block_k, min(tile.warps, max(1, block_q // 16)), tile.stages)


def sdpa(problem: AttentionProblem, profile: HardwareProfile) -> tuple[str, str]:
    """(kernel, reason): what torch.nn.functional.scaled_dot_product_attention takes on that GPU.

    PyTorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
    """
    half = problem.dtype in ("fp16", "bf16")
    asked = ", ".join(field for term, field in problem.terms.items() if term in SCORE_TENSORS)
    if asked and (half or problem.dtype in ("fp32", "tf32")) and (problem.dtype != "bf16" or profile.cc >= 80):
        return "cutlass", f"sdpa: memory-efficient, since flash takes no mask or bias tensor ({asked})"
    if half and profile.cc >= 80 and problem.head_dim == problem.head_dim_v <= 256:
        hopper = " (cuDNN may come first on Hopper with a recent cuDNN)" if profile.cc == 90 else ""
        return "fa2", f"sdpa: flash, which needs cc 8.0 and fp16 or bf16{hopper}"
    if problem.dtype == "bf16" and profile.cc < 80:
        return "math", f"sdpa: the math path, since {profile.name} (cc {profile.cc / 10:.1f}) has no bf16 kernels"
    if problem.dtype in ("fp16", "bf16", "fp32", "tf32"):
        why = "fp32 inputs" if not half else f"cc {profile.cc / 10:.1f} has no flash" if profile.cc < 80 else "head_dim"
        return "cutlass", f"sdpa: memory-efficient ({why})"
    return "math", f"sdpa: the math path, since no fused kernel takes {problem.dtype}"
