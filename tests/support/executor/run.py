"""execute(): the launches of a chain on real arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from executor.arrays import cut, gated, joined, new_tokens, parted, shuffled_table
from executor.body import Array, body_of
from executor.memory import Memory, check_size
from executor.reference import dense, random_arrays
from executor.walk import Walk
from iosim.base.records import dataclass
from iosim.catalog.algorithms import plan
from iosim.catalog.algorithms.registry import reading
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain, Mode, Role
from iosim.kernel.traffic import Traffic
from iosim.problem.attention import AttentionProblem


@dataclass(frozen=True)
class Execution:
    """What an execution gives.

    Args:
        outputs: the chain's output tensors, [batch, heads, rows, cols], row vectors [batch, heads, rows].
        traffic: SM<->L2 bytes by launch, tensor and direction, as moved.
        inputs: the arrays it ran on.
    """

    outputs: dict[str, Array]
    traffic: Traffic
    inputs: dict[str, Array]


def execute(
    problem: AttentionProblem,
    kernel: Kernel,
    arrays: Mapping[str, npt.ArrayLike] | None = None,
    seed: int = 0,
    *,
    chain: Chain | None = None,
) -> Execution:
    """Run the launches that `kernel` makes for `problem` on arrays, counting every byte moved between SMs and L2.

    On-chip arithmetic is float64 whatever `accumulate` says; every value that passes memory is rounded to its tensor's
    format. A backward alone runs the forward first, uncounted, for what it saves. Cost is O(seq_q x seq_k) and a Python
    step a tile: this reader is for problems small enough to be checked.

    Args:
        arrays: Q, K, V [batch, heads, rows, cols], dO for a backward, and what else the problem has (`random_arrays`);
            random ones by default.
        seed: of the random arrays and of the dropout mask.
        chain: the launches to run in place of the kernel's own plan.

    Raises:
        ExecutionError: the description does not hold what the mathematics needs.
        InputError: a problem the kernel does not take, one too large, or an array of another shape.
    """
    chain = plan(problem, kernel) if chain is None else chain
    check_size(chain)
    all_arrays = (
        {**cut(random_arrays(problem, seed), chain), **gated(chain, seed)}
        if arrays is None
        else arrays
    )
    inputs = {name: np.asarray(values, dtype=np.float64) for name, values in all_arrays.items()}
    chain_inputs: dict[str, npt.ArrayLike] = {
        "mask": _mask_values(problem),
        **shuffled_table(problem, seed),
        **new_tokens(problem, chain, inputs),
        **inputs,
    }
    if problem.passes == "bwd":
        chain_inputs = {**_saved(problem, kernel, chain_inputs, seed, chain), **chain_inputs}
    memory, traffic = _run(problem, kernel, chain, chain_inputs, seed)
    outputs = {t.name: memory.array(t.name) for t in chain.role(Role.OUTPUT)}
    return Execution(parted(outputs, problem), traffic, inputs)


def _mask_values(problem: AttentionProblem) -> Array:
    """The mask as a tensor holds it: 1 and 0, or 0 and -inf to be added."""
    kept_pairs = dense(problem.pair_mask, problem.seq_q, problem.seq_k)
    return (
        np.where(kept_pairs, 0.0, -np.inf)
        if problem.mask_storage == "additive"
        else kept_pairs.astype(np.float64)
    )


def _run(
    problem: AttentionProblem,
    kernel: Kernel,
    chain: Chain,
    all_arrays: Mapping[str, npt.ArrayLike],
    seed: int,
) -> tuple[Memory, Traffic]:
    chain_inputs = {
        name: a for name, a in joined(all_arrays, chain).items() if name in chain.tensors
    }
    memory, traffic, seen = (
        Memory(chain, problem, chain_inputs),
        Traffic(),
        reading(problem, kernel),
    )
    for launch in chain.launches:
        traffic += Walk(
            launch, memory, seen, kernel, seed, body_of(kernel.algorithm, launch.name)
        ).run()
    return memory, traffic


def _saved(
    problem: AttentionProblem,
    kernel: Kernel,
    all_arrays: Mapping[str, npt.ArrayLike],
    seed: int,
    backward: Chain,
) -> dict[str, npt.ArrayLike]:
    """What the forward leaves for `backward`: the tensors of both that the backward reads and does not write first."""
    before = problem.with_(passes="fwd")
    kernel = kernel.with_(writes_lse=True)
    memory, _ = _run(before, kernel, plan(before, kernel), all_arrays, seed)
    written: set[str] = set()
    wanted: set[str] = set()
    for launch in backward.launches:
        wanted |= {a.tensor for a in launch.accesses if a.mode is Mode.LOAD} - written
        written |= {a.tensor for a in launch.accesses if a.mode is not Mode.LOAD}
    return {name: memory.arrays[name] for name in wanted & memory.written}
