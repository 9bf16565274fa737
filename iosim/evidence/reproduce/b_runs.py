"""The second half of section B: table 21 of arXiv 2205.14135 (memory), run times of the same runs, and speed-ups.

Batch 16, 8 heads, head_dim 64, fp16, no mask, no dropout, on an A100 with 40 GB.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from iosim.evidence.reproduce.models import MIB, held, keys_outside, standard, standard_kernel
from iosim.evidence.reproduce.row import Row
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.libraries import Overrides
from iosim.prediction.predictor import predict
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import memory

GPU = "a100-sxm-40gb"
LENGTHS = tuple(128 << n for n in range(10))
MEMORY_STANDARD_MIB = (36, 104, 336, 1184, 4416, 17024)
MEMORY_FLASH_MIB = (22, 44, 104, 209, 418, 836, 1672, 3344, 6688, 13376)
BLOCK_K = 256
RUN_TIMES_MS = (
    ("forward, standard", "eager", "fwd", (0.21, 0.22, 0.43, 1.27, 4.32, 16.47, 67.77)),
    ("forward, flash", "fa1", "fwd", (0.08, 0.09, 0.18, 0.68, 2.40, 8.42, 33.54)),
    ("backward, standard", "eager", "bwd", (0.26, 0.29, 0.78, 2.44, 8.82, 33.87)),
    ("backward, flash", "fa1", "bwd", (0.11, 0.16, 0.52, 1.62, 5.45, 21.57)),
)
SPEED_UPS = (
    ("A100", "a100-sxm-40gb", "fwd+bwd", 2.0, 4.0),
    ("RTX 3090", "rtx-3090", "fwd+bwd", 2.5, 4.5),
    ("T4", "t4", "fwd", 2.5, 4.5),
)
SPEED_UP_LENGTHS = tuple(128 << n for n in range(6))

row = partial(Row, "B")


def _problem(tokens: int, passes: str = "fwd+bwd") -> AttentionProblem:
    return AttentionProblem(batch=16, heads=8, seq_q=tokens, head_dim=64, passes=passes)


def _timed(problem: AttentionProblem, kernel: str, gpu: str) -> Prediction:
    """A prediction in which fa1's K and V tiles take turns in shared memory: on a T4 the kernel would not fit else."""
    if kernel != "fa1":
        return predict(problem, kernel, gpu, method="capacity")
    shared = (16 + BLOCK_K) * problem.head_dim * problem.input_type.bytes
    return predict(problem, kernel, gpu, method="capacity", overrides=Overrides(shared_memory_bytes=shared))


def rows() -> Iterator[Row]:
    """Memory, then times, then speed-ups."""
    yield from _memory_rows(load_profile(GPU))
    for name, kernel, passes, published in RUN_TIMES_MS:
        for tokens, claimed in zip(LENGTHS, published, strict=False):
            prediction = _timed(_problem(tokens, passes), kernel, GPU)
            yield row(
                f"run time, {name}, N = {tokens:,}", claimed, prediction.time.total_s * 1e3, "ms",
                f"predicted for {kernel}, bound by {prediction.time.bound_by}",
                "rates of the profile, nothing fitted to these runs; the host's work between launches, which "
                "fills short runs, is not modelled",
            )  # fmt: skip
    yield from _speed_up_rows()


def standard_memory(profile: HardwareProfile, problem: AttentionProblem) -> int:
    """Bytes of eager attention with every tensor kept: 4 N x N tensors and 10 N x d tensors a head."""
    return held(standard(problem, standard_kernel(profile, problem, "scale_q")))


def flash_memory(problem: AttentionProblem) -> int:
    """Peak bytes of FlashAttention-1 beside one older set of gradients: 13 N x d tensors (11 with one key block) and
    two fp32 row vectors a head."""
    one_block = problem.seq_k <= BLOCK_K
    chain = keys_outside(problem, BLOCK_K, letter=False, intermediate_bytes=2 if one_block else 4, output_once=True)
    return memory(chain)["peak"] + sum(chain.tensors[n].bytes for n in ("dQ", "dK", "dV"))


def _memory_rows(profile: HardwareProfile) -> Iterator[Row]:
    for tokens, claimed in zip(LENGTHS, MEMORY_STANDARD_MIB, strict=False):
        yield row(
            f"memory, standard, N = {tokens:,}", claimed, standard_memory(profile, _problem(tokens)) // MIB, "MiB",
            "(4 N^2 + 10 N d) x 2 bytes x 128 heads, rounded down",
            "S, P, dP, dS, the four inputs and outputs, their gradients, Q and dQ before scaling; nothing freed. The "
            "paper prints MB and means MiB",
        )  # fmt: skip
    capacity = int(profile.need("memory_bytes"))
    fails = next(n for n in LENGTHS if standard_memory(profile, _problem(n)) > capacity)
    yield row(
        f"memory, standard: first N that does not fit on {profile.name}", 8192, fails, "tokens",
        f"{standard_memory(profile, _problem(fails)) // MIB:,} MiB needed, {capacity // MIB:,} MiB there",
    )  # fmt: skip
    for tokens, claimed in zip(LENGTHS, MEMORY_FLASH_MIB, strict=True):
        one = tokens <= BLOCK_K
        yield row(
            f"memory, flash, N = {tokens:,}", claimed, flash_memory(_problem(tokens)) // MIB, "MiB",
            f"({11 if one else 13} N d x 2 + 8 N) bytes x 128 heads, rounded down",
            "inputs, outputs, gradients, l and m"
            + ("" if one else ", dQ in fp32 between key blocks")
            + "; and one older set of dQ, dK, dV, as a repeated run leaves it: inferred, the paper names no tensors",
        )  # fmt: skip


def _speed_up_rows() -> Iterator[Row]:
    for title, gpu, passes, low, high in SPEED_UPS:
        speed_up = {}
        for tokens in SPEED_UP_LENGTHS:
            p = _problem(tokens, passes)
            slow, fast = (_timed(p, kernel, gpu).time.total_s for kernel in ("eager", "fa1"))
            speed_up[tokens] = slow / fast
        for word, claimed, choose in (("smallest", low, min), ("largest", high, max)):
            tokens = choose(speed_up, key=lambda n: speed_up[n])
            yield row(
                f"speed-up of flash over standard, {title}, {passes}: {word}", claimed, speed_up[tokens], "times",
                f"N = {tokens:,} out of {SPEED_UP_LENGTHS[0]} to {SPEED_UP_LENGTHS[-1]:,}, eager over fa1",
                "the source states a range, not its shapes: batch 16, 8 heads, head_dim 64, no mask, no dropout here",
            )  # fmt: skip
