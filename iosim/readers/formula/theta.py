"""The paper's two-level term for block-sparse attention beside a kernel's formula and its exact count.

FlashAttention (arXiv 2205.14135), Proposition 4: Theta(N d + N^2 d^2 s / M) elements for one head, where s is the share
of blocks that are kept and M the elements of fast memory.
"""

from __future__ import annotations

from typing import Any

from iosim.kernel.algorithms import algorithm_of
from iosim.kernel.kernel import Kernel
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.blocks import BlockMask
from iosim.readers.formula.theory import bound


def with_density(expression: Any, values: dict[str, int]) -> Any:
    """A formula with its visits Z as s n_q n_k; sums along one side of the mask, of a lower power in N, are dropped."""
    import sympy as sp

    from iosim.readers.formula.block_sums import NAMES
    from iosim.readers.formula.symbolic import symbol

    kept = sp.Symbol("s", positive=True)
    rows = [symbol("seq" if "seq" in values else name) for name in ("seq_q", "seq_k")]
    put: dict[Any, Any] = {}
    for prefix in ("", "backward_"):
        sides = [symbol(f"{prefix}{n}" if f"{prefix}{n}" in values else n) for n in ("block_q", "block_k")]
        put |= {symbol(f"{prefix}{name}"): sp.Integer(0) for name in NAMES}
        put[symbol(f"{prefix}visits")] = kept * rows[0] * rows[1] / (sides[0] * sides[1])
    return sp.sympify(expression).subs(put)


def beside(problem: AttentionProblem, kernel: Kernel, moved_bytes: int) -> dict[str, Any]:
    """The term in numbers, where the fast memory is what the kernel's tile fills by the paper's rule, M = 4 d B.

    B is the side of the tile that stays while the other is walked: key rows where keys are outside, as in
    `flash1`, else query rows.

    Returns:
        kept_blocks and blocks of the mask, kept_fraction (s), fast_elements (M), theta_elements of one head, and
        times_above: `moved_bytes` of all heads in multiples of the term.
    """
    mask = problem.pair_mask
    assert isinstance(mask, BlockMask)
    stays = kernel.tile.block_k if algorithm_of(kernel.algorithm).keys_outside else kernel.tile.block_q
    fast = max(problem.head_dim, min(4 * problem.head_dim * stays, problem.seq_q * problem.head_dim))
    term, heads = bound("block_sparse"), problem.batch * problem.heads
    s = mask.kept_fraction
    return {
        "kept_blocks": mask.nnz,
        "blocks": mask.shape[0] * mask.shape[1],
        "kept_fraction": s,
        "fast_elements": fast,
        "theta_elements": term.elements(problem.seq_q, problem.head_dim, fast, s),
        "times_above": term.times_above(moved_bytes, problem.input_type.bytes, problem.seq_q, problem.head_dim, fast,
                                        heads=heads, kept=s),
    }  # fmt: skip


def beside_text(values: dict[str, Any]) -> str:
    """`beside` in one line."""
    return (
        f"mask: {values['kept_blocks']:,} of {values['blocks']:,} blocks kept, s = {values['kept_fraction']:.4g}; "
        f"N d + N^2 d^2 s / M = {values['theta_elements']:,.0f} elements a head with M = 4 d B = "
        f"{values['fast_elements']:,}; the exact bytes are {values['times_above']:.3g} times that"
    )
