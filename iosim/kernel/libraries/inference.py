"""What library kernels decide at launch for inference: packed rows, FlashAttention-3's splits, FlashMLA's splits."""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Mode, Overhead
from iosim.kernel.libraries.loader import Entry
from iosim.problem.attention import AttentionProblem


def check_cache(data: Entry, problem: AttentionProblem) -> None:
    """Refuse a cache that the library's kernel does not read; whether it reads pages and latent ones, its file says.

    Raises:
        InputError: pages of a size that it does not take, no latent cache, or widths other than those it is made for.
    """
    requires, name, page = data["requires"], data["name"], problem.page_size
    if requires.get("latent_only") and not problem.latent_kv:
        raise InputError(f"`kernel` {name}: it reads one latent K/V; accepted with it: `latent_kv=True`")
    widths = requires.get("widths")
    if widths and [problem.head_dim, problem.head_dim_v] != widths:
        raise InputError(f"`head_dim` {problem.head_dim}, `head_dim_v` {problem.head_dim_v}: not made for kernel "
                         f"{name}; accepted: {widths[0]} and {widths[1]}")  # fmt: skip
    if page is None:
        return
    if page not in requires.get("page_sizes", (page,)):
        raise InputError(f"`page_size` {page}: not supported by kernel {name}; accepted: "
                         f"{', '.join(map(str, requires['page_sizes']))}")  # fmt: skip
    if page % requires.get("page_multiple", 1):
        raise InputError(f"`page_size` {page}: not supported by kernel {name}; accepted: multiples of "
                         f"{requires['page_multiple']}")  # fmt: skip


FA3_MAX_SPLITS = 128
FA3_FEW_KEY_BLOCKS = 4
FA3_L2_BYTES = 50 << 20
FA3_FULL_SHARE = 0.8
FA3_EFFICIENCY = 0.85
FA3_PACKED_GAIN = 0.9


def fa3_splits(problem: AttentionProblem, sms: int, block_q: int, block_k: int) -> int:
    """FlashAttention-3's number of KV splits (hopper/heuristics.h @13d0fd9c, num_splits_heuristic, as called by
    get_num_splits of hopper/flash_api.cpp).

    Rows are counted as packed. With tiles for 80 % of the SMs: 1, unless a head's K and V outgrow 50 MiB and two rounds
    of query blocks go over them. With up to 4 key blocks: 1. Else the fewest within 85 % of the best wave efficiency.
    """
    query_blocks = -(-problem.seq_q * problem.group // block_q)
    tiles = problem.batch * problem.kv_heads * query_blocks
    keys = problem.seq_k
    if problem.window is not None:
        keys = min(keys, problem.window + 1 + block_q)
    key_blocks = -(-keys // block_k)
    if tiles >= FA3_FULL_SHARE * sms:
        head_bytes = problem.seq_k * (problem.head_dim + problem.head_dim_v) * problem.input_type.bytes
        again = head_bytes > FA3_L2_BYTES and query_blocks >= 2 * sms and problem.mask == "none"
        return min(-(-head_bytes // FA3_L2_BYTES), FA3_MAX_SPLITS) if again else 1
    if key_blocks <= FA3_FEW_KEY_BLOCKS:
        return 1

    def efficiency(s: int) -> float:
        return tiles * s / sms / -(-tiles * s // sms)

    candidates = range(1, min(FA3_MAX_SPLITS, sms, key_blocks) + 1)
    best = max(efficiency(s) for s in candidates)
    return next(s for s in candidates if efficiency(s) >= FA3_EFFICIENCY * best)


def fa3_packs_group(problem: AttentionProblem, splits: int, block_q: int, block_k: int) -> bool:
    """FlashAttention-3's PackGQA: with splits, with pages that TMA does not fetch, or where packing fills tiles better
    (hopper/flash_api.cpp, get_pack_gqa and get_pagedkv_tma; hopper/heuristics.h @13d0fd9c, should_pack_gqa)."""
    if problem.group == 1:
        return False
    if splits > 1:
        return True
    packed = problem.seq_q * problem.group
    if problem.page_size is not None and not (problem.page_size % block_k == 0 and packed > block_q):
        return True

    def filled(rows: int) -> float:
        return rows / (-(-rows // block_q) * block_q)

    return filled(problem.seq_q) < FA3_PACKED_GAIN * filled(packed)


def packs_group(data: Entry, problem: AttentionProblem, splits: int, block_q: int, block_k: int) -> bool:
    """Whether the query heads of a group share the rows of a tile.

    FlashAttention-2 (csrc/flash_attn/flash_api.cpp, seqlenq_ngroups_swapped): one query token, no window, no dropout,
    head_dim a multiple of 8. cuDNN: one query token, inferred.
    """
    if problem.passes != "fwd" or problem.dropout > 0 or not problem.shares_rows:
        return False
    if data.get("tile_choice") == "fa3":
        return fa3_packs_group(problem, splits, block_q, block_k)
    packs = bool(data["kernel"].get("packs_group"))
    if data.get("tile_choice") == "fa2":
        return packs and problem.seq_q == 1 and problem.mask != "window" and problem.head_dim % 8 == 0
    return packs and (problem.seq_q == 1 or data["algorithm"] == "mla")


def packs_by_hand(kernel: Kernel, problem: AttentionProblem, asked: bool) -> bool:
    """Packing as the user asks for it.

    Raises:
        InputError: rows of several heads in a tile where the kernel cannot have them.
    """
    if asked and (kernel.algorithm != "flash" or problem.passes != "fwd"):
        raise InputError(f"`pack_group=True`: kernel {kernel.name}, pass {problem.passes}, has no rows to pack; "
                         "accepted: kernels of algorithm flash, pass fwd")  # fmt: skip
    if not asked and kernel.algorithm == "mla":
        raise InputError(f"`pack_group=False`: kernel {kernel.name} always packs")
    return asked


def splits_of_tile(
    data: Entry, problem: AttentionProblem, profile: HardwareProfile, block_q: int, block_k: int
) -> int | None:
    """Splits by the rules that go by the tile; None for kernels that have none."""
    if problem.passes != "fwd" or problem.dropout > 0 or problem.seq_lens is not None:
        return None
    sms = int(profile.need("sm_count"))
    if data.get("tile_choice") == "fa3":
        return fa3_splits(problem, sms, block_q, block_k)
    if data["algorithm"] == "mla":
        return flashmla_splits(problem, sms, block_q, block_k)
    return None


def append(data: Entry) -> dict[str, bool]:
    """The option that the new tokens are written into the cache first.

    Raises:
        InputError: an append by a kernel that has no cache.
    """
    if data["algorithm"] not in ("flash", "mla"):
        raise InputError(
            f"`append_kv=True`: kernel {data['name']} has no cache; accepted: kernels of algorithm flash, mla"
        )
    return {"append_kv": True}


CUDNN_QUERY_ROWS = 16


def overheads(data: Entry, problem: AttentionProblem) -> tuple[Overhead, ...]:
    """What the split kernel reads besides its tensors: cuDNN's CTAs fetch 16 rows of Q from their group's first head
    on, as far as there are heads, and use their group's. The mean over the groups, in whole bytes.

    Inferred from eleven recorded calls (experiments/measurements/h200_decode.csv, h200_library_kernels.csv), which it
    meets to the byte; not published.
    """
    if data["name"] != "cudnn" or problem.seq_q != 1:
        return ()
    group, box = problem.group, -(-problem.group // CUDNN_QUERY_ROWS) * CUDNN_QUERY_ROWS
    extra = sum(min(box, problem.heads - first) - group for first in range(0, problem.heads, group))
    row_bytes = problem.head_dim * problem.input_type.bytes
    per_tile = round(extra * row_bytes / problem.kv_heads)
    source = "experiments/measurements/h200_decode.csv"
    made = Overhead("neighbours_of_Q", Mode.LOAD, per_tile=per_tile, inferred_from=source)
    return (made,) if per_tile else ()


def as_launched(data: Entry, problem: AttentionProblem) -> AttentionProblem:
    """The problem as the library's own rules see it: for one query token FlashAttention drops a causal mask, which then
    keeps every key; FlashAttention-3 not at head_dim 65 to 128 with pages (csrc/flash_attn/flash_api.cpp,
    hopper/flash_api.cpp)."""
    rule = data.get("tile_choice")
    if rule not in ("fa2", "fa3") or problem.seq_q != 1 or problem.mask != "causal" or problem.offset is not None:
        return problem
    if rule == "fa3" and problem.page_size is not None and 64 < problem.head_dim <= 128:
        return problem
    return problem.with_(mask="none")


MLA_FIXED_BLOCKS = 5
"""What FlashMLA's scheduler adds to every sequence's key blocks for prologue and epilogue."""


def flashmla_splits(problem: AttentionProblem, sms: int, block_q: int, block_k: int) -> int:
    """FlashMLA's splits of a sequence, the mean over a batch of equal lengths, rounded (deepseek-ai/FlashMLA @69f31931,
    csrc/sm90/flash_api.cpp and kernels/get_mla_metadata.cu).

    The SMs form one part for every (key/value head, query block); the parts take the key blocks of all sequences in
    turn, a part as many as the mean and 5 more, and a sequence is split where a part ends.
    NB: in a batch some sequences are split and others are not; here all get the rounded mean.
    """
    query_blocks = -(-problem.seq_q * problem.group // block_q)
    parts = max(1, sms // problem.kv_heads // query_blocks)
    blocks = -(-problem.seq_k // block_k)
    share = -(-problem.batch * (blocks + MLA_FIXED_BLOCKS) // parts) + MLA_FIXED_BLOCKS
    payload = max(share, 2 * MLA_FIXED_BLOCKS)
    total = _flashmla_pieces(problem.batch, blocks, payload)
    return max(1, min(blocks, round(total / problem.batch)))


def _flashmla_pieces(batch: int, blocks: int, payload: int) -> int:
    """Pieces that parts of `payload` blocks cut `batch` sequences of `blocks` key blocks into."""
    pieces, left = 0, payload
    for _ in range(batch):
        rest = blocks
        while left < rest + MLA_FIXED_BLOCKS:
            if left > MLA_FIXED_BLOCKS:
                rest -= left - MLA_FIXED_BLOCKS
                pieces += 1
            left = payload
        left -= rest + MLA_FIXED_BLOCKS
        pieces += 1
    return pieces
