"""What the sections share: chains under a source's assumptions, and sums over their traffic."""

from __future__ import annotations

import csv
from collections.abc import Container
from dataclasses import replace

from iosim.base.data import data_dir
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.algorithms import flash, flash1, naive, options_for
from iosim.kernel.algorithms.common import matrix
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain, Role
from iosim.kernel.libraries import resolve
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import HbmBounds, bounds
from iosim.readers.count import count

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MB, GB = 10**6, 10**9
WHOLE_TENSOR = 1 << 31
"""A product's tile as large as any tensor: every product reads its operands once, as the papers count."""


def standard_kernel(profile: HardwareProfile, problem: AttentionProblem, *passes: str) -> Kernel:
    """Attention through N x N tensors with the passes named, each product reading its operands once."""
    kernel = resolve("naive", problem, profile)
    return kernel.with_(options=options_for("naive", {"gemm_tile": (WHOLE_TENSOR, WHOLE_TENSOR), "passes": passes}))


def standard(problem: AttentionProblem, kernel: Kernel, backward: Kernel | None = None) -> Chain:
    """The chain of `kernel`; of both passes, with `backward`'s options in the second."""
    if problem.passes == "fwd":
        return naive.forward(problem, kernel)
    return naive.forward(problem, kernel).then(naive.backward(problem, backward or kernel))


def copies(problem: AttentionProblem, number: int) -> Chain:
    """`number` launches that each read an N x d tensor and write its copy."""
    builder = naive.ChainBuilder(problem, Kernel("copies", "naive", Tile(128, 128)))
    source = matrix(problem, "Q", Role.INPUT)
    builder.hold(source)
    for n in range(number):
        builder.copy(f"copy{n}", "Q", replace(source, name=f"copy{n}", role=Role.OUTPUT))
    return builder.chain()


def keys_outside(
    problem: AttentionProblem, block_k: int, *, letter: bool, intermediate_bytes: int, output_once: bool
) -> Chain:
    """FlashAttention's Algorithms 1 and 4, or the real kernel's variation of them."""
    options = flash1.Flash1Options(letter, intermediate_bytes, output_once)
    return flash1.plan_flash1(problem, Kernel("flash1", "flash1", Tile(16, block_k), options=options))


def queries_outside(problem: AttentionProblem, block_q: int, block_k: int = 64) -> Chain:
    """Flash attention with query tiles of `block_q` rows, that keeps no row statistics."""
    return flash.forward(problem, Kernel("flash", "flash", Tile(block_q, block_k), writes_lse=False))


def least_bytes(problem: AttentionProblem) -> HbmBounds:
    """Bounds of flash attention with query tiles of 128 rows, that keeps no row statistics."""
    chain = queries_outside(problem, 128)
    return bounds(problem, chain, count(chain), added_bytes=0)


def moved(chain: Chain, *, without: Container[str] = (), outside: Container[str] = ()) -> int:
    """Bytes between SMs and L2, read and written, but for the tensors `without` and the launches `outside`."""
    return sum(int(r.bytes) for r in count(chain) if r.tensor not in without and r.launch not in outside)


def held(chain: Chain) -> int:
    """Bytes of all tensors of a chain, none of them freed."""
    return sum(t.bytes for t in chain.tensors.values())


def flops(chain: Chain) -> int:
    """Floating-point operations of the matrix products of a chain without a mask."""
    return chain.product_flops


def recorded_chain(implementation: str, problem: AttentionProblem) -> dict[str, int]:
    """The counters of one recorded chain on an H200, in bytes."""
    wanted = {
        "implementation": implementation, "batch": str(problem.batch), "heads": str(problem.heads),
        "seq": str(problem.seq_q), "head_dim": str(problem.head_dim),
    }  # fmt: skip
    with open(data_dir("kernels") / "measurements" / "h200_chains.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if all(row[k] == v for k, v in wanted.items()):
                return {k: int(row[k]) for k in ("hbm_read", "hbm_write", "l2_read", "l2_write")}
    raise KeyError(f"no recorded chain {wanted}")
