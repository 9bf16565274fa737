"""`math`: the path PyTorch's scaled_dot_product_attention falls back to, pass by pass.

Half-precision inputs are cast to fp32, Q and K are each scaled by the square root of the scale, the softmax is the
"safe" one that finds fully masked rows (compare with -inf, reduce, select), and both results are cast back
(PyTorch, aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math and _safe_softmax).
An explicit mask, or a bias, is added to the scores; a mask of bytes is made additive first, in fp32 as Q is by then.
It writes 15 bytes an N x N element for fp16 inputs. Order, element sizes and tiles are those of the launches of
PyTorch 2.11 on an H200, listed by the profiler (experiments/measurements/h200_chain_launches.csv). What the function
holds by a name of its own lives to its end (the casts, Q scaled, P), the scores until the softmax returns.

NB: passes over more than 2^31 bytes are two launches there, one here. Products in fp32 find up to 21 % of their reads
in L1, which is not modelled.
"""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.catalog.algorithms.common import load, matrices, matrix, row_vector, score_matrix, store
from iosim.catalog.algorithms.naive import (
    ISSUED_BY_CAST,
    ISSUED_BY_MASK,
    ChainBuilder,
    ProductOptions,
    add_bias,
    mask_keys,
)
from iosim.catalog.algorithms.registry import algorithm
from iosim.catalog.algorithms.terms import added_mask, convert_mask, stored_mask
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import SECTOR_BYTES, Chain, Domain, Launch, Outer, Per, Role, Rows, Tensor
from iosim.problem.attention import AttentionProblem

FLAGS_A_PACKET = 4
"""Rows whose flags, of a byte, leave an SM in one packet: 8.1 bytes per row are written in the list where rows are
many, and 5.1 to 7.7 where they are few."""
SELECT_VALUES, SELECT_ELEMENTS = 2, 256
"""Elements that a thread and a CTA of the choice take (its grid in the list). A sector holds the flags of 32 rows, and
each SM that runs one of their CTAs reads it once: 57 SMs of 64 CTAs in the list, 89 of 128, 118 of 256, 131 of 512."""


def _mask(b: ChainBuilder, scores: str) -> str:
    """The pass that adds the mask: the path's own in fp32, or the tensor it was given, bytes converted first."""
    p = b.problem
    stored, name = stored_mask(p), "mask"
    if p.mask_storage == "implicit":
        b.hold(replace(stored, element_bytes=4))
    else:
        b.hold(stored)
        if p.mask_storage == "bool":
            b.hold(added_mask(p, element_bytes=4))
            b.launches.append(convert_mask(p))
            name = "mask_added"
    return b.pass_over_scores("mask", (scores, name), "S_masked", issued=ISSUED_BY_MASK)


def _safe_softmax(b: ChainBuilder, scores: str) -> None:
    """Softmax, then zeros in rows whose scores are all -inf: a byte an element, a flag a row, a choice in place."""
    p = b.problem
    b.pass_over_scores("softmax", (scores,), "P", exps=1)
    b.pass_over_scores("is_masked", (scores,), score_matrix(p, "is_masked", Role.TEMP, 1))
    flags = replace(row_vector(p, "masked_rows", Role.TEMP), element_bytes=1)
    b.hold(flags, Tensor("zero", 1, 1, 1, 1, 4, Role.TEMP))
    b.pass_over_scores("all_masked", ("is_masked",))
    b.also(store(flags.name, Rows.QUERY, Per.QUERY, packet_rows=FLAGS_A_PACKET))
    b.launches.append(
        Launch("zero", Domain(1, 1, 1, 1, 1, 1), Outer.FLAT, (store("zero", Rows.OWN, Per.LAUNCH),))
    )
    b.pass_over_scores("select", ("P",), "P", rows=SECTOR_BYTES, values=SELECT_VALUES)
    # Each SM that runs one of these CTAs reads the sector of flags once.
    ctas = max(1, SECTOR_BYTES * p.seq_k // SELECT_ELEMENTS)
    readers = min(ctas, b.products.sm_count)
    b.also(
        load(flags.name, Rows.QUERY, Per.QUERY, times=readers), load("zero", Rows.OWN, Per.LAUNCH)
    )


TAKES = ("bias", "key_padding", "mask_tensor", "block_lists", "looks_ahead")


@algorithm("math", takes=TAKES, options=ProductOptions, standard=True)
def plan_math(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """Forward chain. Raises InputError: a backward pass; autograd's backward of this path is not described."""
    if problem.passes != "fwd":
        raise InputError(
            f"`passes` '{problem.passes}' is not described for kernel 'math'; accepted: fwd"
        )
    b = ChainBuilder(problem, kernel, score_bytes=4, padding_bytes=4)
    casts = problem.input_type.bytes < 4
    b.hold(*matrices(problem, "Q K V", Role.INPUT))

    def wide(name: str, source: str) -> Tensor:
        return replace(matrix(problem, source, Role.TEMP, element_bytes=4), name=name)

    # What each operand is called as the passes go on: cast to fp32, then scaled.
    current = {n: n for n in "QKV"}
    if casts:
        for n in "QKV":
            target = wide(f"{n}_fp32", n)
            b.copy(f"cast_{n}", n, target, keys=n != "Q", issued=ISSUED_BY_CAST)
            current[n] = f"{n}_fp32"
    for n in "QK":
        b.copy(f"scale_{n}", current[n], wide(f"{n}_scaled", n), keys=n != "Q")
        current[n] = f"{n}_scaled"
    b.product_to_scores("scores", current["Q"], current["K"], "S", problem.head_dim)
    scores = "S"
    if problem.bias == "full":
        scores = add_bias(b, scores)
    if problem.key_padding:
        scores = mask_keys(b, "padding", scores, "S_padded")
    if problem.mask != "none":
        scores = _mask(b, scores)
    _safe_softmax(b, scores)
    weights = "P"
    if problem.dropout > 0:
        mask = score_matrix(problem, "dropout_mask", Role.TEMP, 1)
        weights = b.pass_over_scores("dropout", ("P",), "P_dropped", mask)
    b.hold(matrix(problem, "O", Role.OUTPUT))
    if casts:
        b.pass_over_scores(
            "cast_P",
            (weights,),
            score_matrix(problem, "P_out", Role.TEMP, problem.input_type.bytes),
        )
        b.hold(replace(matrix(problem, "O", Role.TEMP, element_bytes=4), name="O_fp32"))
        b.product_over(Outer.QUERY, "values", weights, current["V"], "O_fp32", problem.head_dim_v)
        b.copy("cast_O", "O_fp32", matrix(problem, "O", Role.OUTPUT))
    else:
        b.product_over(Outer.QUERY, "values", weights, current["V"], "O", problem.head_dim_v)
    # The C++ function holds these by name until it returns, the scores until its softmax does.
    b.keep(b.launches[-1].name, *(f"{n}_fp32" for n in "QKV"), "Q_scaled", "P", weights, "P_out")
    b.keep("select", scores, "is_masked")
    return b.chain()
