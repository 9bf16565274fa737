"""Block masks in files: NumPy's .npy and .npz, and the arrays of a PyTorch FlexAttention BlockMask.

.npy   a boolean [block rows, block columns]; the block's size is given beside it
.npz   `mask` with `BLOCK_SIZE` (one number or two), or a BlockMask's own arrays: kv_num_blocks [.., block rows],
       kv_indices [.., block rows, block columns], full_kv_num_blocks and full_kv_indices where there are any,
       BLOCK_SIZE (q, k). Leading axes (batch, heads) have size 1: one mask serves all heads.
"""

from __future__ import annotations

import io
import lzma
import math
import os
import struct
import tokenize
import zipfile
import zlib
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from iosim.base.arrays import tallied
from iosim.base.errors import InputError
from iosim.base.files import require_file, write_whole
from iosim.problem.masks.blocks import BlockMask, ranges
from iosim.problem.masks.mask import BoolArray, IntArray

MAX_BYTES = 1 << 29
"""Bytes of the arrays of a file together: 8,192 x 8,192 blocks as a BlockMask's two lists."""
MEMBERS = (
    "mask",
    "BLOCK_SIZE",
    "kv_num_blocks",
    "kv_indices",
    "full_kv_num_blocks",
    "full_kv_indices",
)
Array = npt.NDArray[Any]


def _arrays(path: str) -> tuple[dict[str, Array], list[str]]:
    """(the arrays that a mask is made of, the names of all members). Others are not unpacked. Raises ValueError: too
    large, or no array."""
    if os.path.getsize(path) <= MAX_BYTES:
        if not zipfile.is_zipfile(path):
            with open(path, "rb") as file:
                _check_size(file, os.path.getsize(path))
            return {"mask": np.load(path, allow_pickle=False)}, ["mask"]
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            needed = {name: info for name, info in members.items() if name in MEMBERS}
            if sum(info.file_size for info in needed.values()) <= MAX_BYTES:
                for info in needed.values():
                    with archive.open(info) as member:
                        _check_size(member, info.file_size)
                with np.load(path, allow_pickle=False) as loaded:
                    return {name: np.asarray(loaded[name]) for name in needed}, list(members)
    raise ValueError(f"arrays of more than {MAX_BYTES >> 20} MiB")


def _check_size(file: IO[bytes], size: int) -> None:
    """Raises ValueError: a header that promises more than the file's `size`, which NumPy would allocate unseen."""
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(file)
    if version not in readers:
        raise ValueError(f"version {version} of NumPy's format")
    shape, _, dtype = readers[version](file)
    if math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"an array of {math.prod(shape)} elements in {size} bytes")


_BROKEN = (
    ValueError,
    EOFError,
    KeyError,
    IndexError,
    TypeError,
    OverflowError,
    RuntimeError,
    MemoryError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    SyntaxError,
    tokenize.TokenError,
)
"""What the readers of archives and of NumPy's headers raise over broken, encrypted or exotically packed ones."""


class _File:
    """A mask's arrays, and the words with which to refuse them; `where` they stand begins a message."""

    def __init__(self, path: str, seq_q: int, seq_k: int, where: str = "") -> None:
        self.path, self.seq_q, self.seq_k = path, seq_q, seq_k
        self.where = where or f"`mask_file` {path}"

    def refuse(self, reason: str, accepted: str) -> InputError:
        return InputError(f"{self.where}: {reason}; accepted: {accepted}")

    def read(self) -> dict[str, Array]:
        accepted = "a NumPy .npy or .npz file with a block mask"
        try:
            require_file(self.path, f"`mask_file` {self.path}")
            arrays, names = _arrays(self.path)
        except OSError as error:
            raise self.refuse(f"cannot be read ({error.strerror or error})", accepted) from None
        except InputError:
            raise
        except _BROKEN as error:
            raise self.refuse(
                f"is not read ({' '.join(str(error.args[0] if error.args else error).split())[:80]})",
                accepted,
            ) from None
        if "mask" not in arrays and "kv_indices" not in arrays:
            raise self.refuse(
                f"holds {', '.join(sorted(names)) or 'nothing'}",
                "mask, or kv_num_blocks and kv_indices",
            )
        return arrays

    def block(self, arrays: dict[str, Array], requested: tuple[int, int] | None) -> tuple[int, int]:
        """Sides of a block: the file's, which `requested` must not contradict."""
        if "BLOCK_SIZE" not in arrays:
            if requested is None:
                raise self.refuse(
                    "does not say its block size",
                    "with it `mask_block`, or an .npz with BLOCK_SIZE",
                )
            return requested
        # PyTorch keeps BLOCK_SIZE as a pair (Q_BLOCK_SIZE, KV_BLOCK_SIZE), or one number for both.
        stored = np.atleast_1d(arrays["BLOCK_SIZE"])
        if (
            stored.dtype.kind not in "iu"
            or stored.ndim != 1
            or stored.size not in (1, 2)
            or stored.min() < 1
        ):
            raise self.refuse(
                f"BLOCK_SIZE {stored.tolist()} is no block size", "one or two whole numbers from 1"
            )
        size = int(stored[0]), int(stored[-1])
        if requested is not None and requested != size:
            raise self.refuse(
                f"its blocks are {size[0]}x{size[1]}, `mask_block` says {requested[0]}x{requested[1]}",
                "the same size, or no `mask_block`",
            )
        return size

    def shape(self, block: tuple[int, int]) -> tuple[int, int]:
        return -(-self.seq_q // block[0]), -(-self.seq_k // block[1])

    def check_shape(self, name: str, shape: tuple[int, ...], block: tuple[int, int]) -> None:
        right = self.shape(block)
        if shape != right:
            raise self.refuse(
                f"{name} is {'x'.join(map(str, shape)) or 'one number'}, {self.seq_q} queries and {self.seq_k} keys in "
                f"blocks of {block[0]}x{block[1]} are {right[0]}x{right[1]}",
                "a mask of that shape",
            )

    def dense(self, mask: Array, block: tuple[int, int]) -> BlockMask:
        """A boolean block mask; whole numbers 0 and 1 pass for one."""
        if mask.dtype.kind not in "biu" or (
            mask.dtype.kind != "b" and not ((mask == 0) | (mask == 1)).all()
        ):
            raise self.refuse(f"mask has dtype {mask.dtype}", "booleans, or whole numbers 0 and 1")
        self.check_shape("mask", mask.shape, block)
        return BlockMask.of_dense(mask.astype(np.bool_), self.seq_q, self.seq_k, *block)

    def lists(
        self, arrays: dict[str, Array], prefix: str, block: tuple[int, int]
    ) -> tuple[IntArray, IntArray]:
        """(rows, columns) of a BlockMask's kept blocks of one kind."""
        names = f"{prefix}kv_num_blocks", f"{prefix}kv_indices"
        missing = [n for n in names if n not in arrays]
        # How many blocks a row has, and which they are: neither says anything without the other.
        if missing:
            raise self.refuse(f"has no {missing[0]}", "mask, or kv_num_blocks and kv_indices")
        # kv_num_blocks says how many of each row of kv_indices count; what stands behind them is of no block
        # (torch.nn.attention.flex_attention.BlockMask).
        count, indices = (
            self.one_head(name, arrays[name], axes)
            for name, axes in zip(names, (1, 2), strict=True)
        )
        height, width = self.shape(block)
        if count.shape != (height,) or indices.shape[0] != height:
            self.check_shape(names[1], indices.shape, block)
            self.check_shape(names[0], (*count.shape, width), block)
        if count.size and not 0 <= count.min() <= count.max() <= indices.shape[1]:
            wide = f"{names[0]} has {count.max()} blocks in a row of {indices.shape[1]}"
            raise self.refuse(wide, "0 up to that many")
        step, rows = ranges(np.zeros(height, dtype=np.int64), count)
        cols = indices[rows, step]
        if cols.size and not 0 <= cols.min() <= cols.max() < width:
            raise self.refuse(
                f"{names[1]} names block {cols.max() if cols.min() >= 0 else cols.min()}",
                f"0 to {width - 1}",
            )
        return rows, cols

    def one_head(self, name: str, array: Array, axes: int) -> IntArray:
        if array.dtype.kind not in "iu":
            raise self.refuse(f"{name} has dtype {array.dtype}", "whole numbers")
        lead = array.shape[: array.ndim - axes]
        if array.ndim < axes or any(n != 1 for n in lead):
            shape = "x".join(map(str, array.shape))
            raise self.refuse(
                f"{name} has shape {shape}", "one mask for all heads: leading axes of 1"
            )
        return array.reshape(array.shape[array.ndim - axes :]).astype(np.int64)


def load_block_mask(
    path: str, seq_q: int, seq_k: int, block: tuple[int, int] | None = None
) -> BlockMask:
    """The block mask in a file, for `seq_q` queries and `seq_k` keys; `block` is (queries, keys) of a block, needed
    where the file does not say. Raises InputError: the arrays do not fit together, the lengths or the block."""
    file = _File(path, seq_q, seq_k)
    return _of_arrays(file, file.read(), block)


def is_flex_mask(value: object) -> bool:
    """True where a value is a BlockMask of PyTorch's FlexAttention, by its attributes: PyTorch need not be there."""
    return all(hasattr(value, name) for name in ("kv_num_blocks", "kv_indices", "BLOCK_SIZE"))


def of_flex_mask(mask: Any, seq_q: int, seq_k: int) -> BlockMask:
    """A BlockMask of PyTorch's FlexAttention, as `create_block_mask` makes it, for `seq_q` queries and `seq_k` keys.
    Raises InputError: a mask of other lengths, one that differs by head, or one whose blocks are not known."""
    file = _File("", seq_q, seq_k, "`mask_blocks`")
    its = getattr(mask, "seq_lengths", None) or (seq_q, seq_k)
    if tuple(its) != (seq_q, seq_k):
        raise file.refuse(
            f"it is for {its[0]} queries and {its[1]} keys", f"one for {seq_q} and {seq_k}"
        )
    arrays: dict[str, Array] = {"BLOCK_SIZE": np.array(mask.BLOCK_SIZE)}
    for name in MEMBERS[2:]:
        tensor = getattr(mask, name, None)
        if tensor is None:
            continue
        if str(tensor.device) == "meta":
            raise file.refuse(
                f"{name} is on the meta device and has no values", "a mask that is made on a device"
            )
        arrays[name] = np.asarray(tensor.detach().cpu())
    return _of_arrays(file, arrays, None)


def _of_arrays(file: _File, arrays: dict[str, Array], block: tuple[int, int] | None) -> BlockMask:
    seq_q, seq_k = file.seq_q, file.seq_k
    size = file.block(arrays, block)
    if "mask" in arrays:
        return file.dense(arrays["mask"], size)
    parts = [(*file.lists(arrays, "", size), False)]
    if "full_kv_indices" in arrays or "full_kv_num_blocks" in arrays:
        parts.append((*file.lists(arrays, "full_", size), True))
    rows, cols = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    full: BoolArray = np.concatenate([np.full(p[0].size, p[2]) for p in parts])
    mask = BlockMask.of_pairs(seq_q, seq_k, *size, rows, cols, full if full.any() else None)
    if mask.nnz != rows.size:
        raise file.refuse(f"names {rows.size - mask.nnz} blocks twice", "every kept block once")
    return mask


def save_block_mask(path: str, mask: BlockMask) -> None:
    """Write a mask as the arrays of a FlexAttention BlockMask; the file appears whole."""
    height, width = mask.shape
    arrays: dict[str, Array] = {"BLOCK_SIZE": np.array([mask.block_q, mask.block_k])}
    full = np.zeros(mask.nnz, dtype=np.bool_) if mask.full is None else mask.full
    for prefix, chosen in (("", ~full), ("full_", full)):
        rows, cols = mask.rows[chosen], mask.indices[chosen]
        count = tallied(rows, minlength=height)
        indices = np.zeros((height, width), dtype=np.int32)
        indices[rows, np.arange(rows.size) - (np.cumsum(count) - count)[rows]] = cols
        arrays |= {f"{prefix}kv_num_blocks": count.astype(np.int32), f"{prefix}kv_indices": indices}
    text = io.BytesIO()
    np.savez_compressed(text, **arrays)  # type: ignore[arg-type]
    write_whole(path, text.getvalue())
