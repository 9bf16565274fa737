"""Section B: the FlashAttention paper (arXiv 2205.14135) on A100s: traffic of figure 2 and the operations beside it.

The paper does not say which passes its standard attention makes nor what its flash kernel keeps between key blocks;
each row states one set of assumptions. That a row meets a published number is a fit, not a proof. Table 21 and the
run times of the same runs stand in `b_runs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from iosim.evidence.reproduce import b_runs
from iosim.evidence.reproduce.models import (
    GB,
    copies,
    flops,
    keys_outside,
    moved,
    recorded_chain,
    standard,
    standard_kernel,
)
from iosim.evidence.reproduce.registry import section
from iosim.evidence.reproduce.row import Row
from iosim.hardware.profile import load_profile
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem

TITLE = "FlashAttention paper, figure 2 left: GPT-2 medium, N 1,024, d 64, 16 heads, batch 64, fp16, fwd+bwd, A100"
GPU = "a100-sxm-40gb"
STANDARD_V2, STANDARD_NEURIPS, FLASH = 40.3, 35.3, 4.4
LAYOUT_COPIES = 9
"""Copies of N x d tensors that take a packed, strided tensor apart and put it together again, both passes."""
BLOCK_K = 256
STATISTICS = ("l", "m")
FILLS = ("fill", "bwd.fill")

row = partial(Row, "B")


def figure_problem(**changes: object) -> AttentionProblem:
    """The shape of figure 2."""
    shape = AttentionProblem(batch=64, heads=16, seq_q=1024, head_dim=64, passes="fwd+bwd")
    return shape.with_(**changes)


@section("B", TITLE)
def rows() -> Iterator[Row]:
    """Figure 2, its operations, the memory table, run times, speed-ups."""
    yield from _standard_rows()
    yield from _flash_rows()
    yield from _measured_rows()
    yield from _operation_rows()
    yield from b_runs.rows()


def _standard_rows() -> Iterator[Row]:
    gpu = load_profile(GPU)
    plain = figure_problem()
    masked, dropped = figure_problem(mask="causal"), figure_problem(dropout=0.1)
    both = figure_problem(mask="causal", dropout=0.1)
    extra = moved(copies(plain, LAYOUT_COPIES))

    def standard_gb(p: AttentionProblem, passes: tuple[str, ...], back: tuple[str, ...] | None = None) -> float:
        forward = standard_kernel(gpu, p, *passes)
        backward = None if back is None else standard_kernel(gpu, p, *back)
        return moved(standard(p, forward, backward), without=("mask",))

    letter = standard_gb(plain, ())
    mask_both = standard_gb(masked, ("mask",))
    dropout = standard_gb(dropped, ("dropout",))
    mask_forward = standard_gb(both, ("mask", "dropout"), ("dropout",))
    every = "every product reads its operands once; the mask's own bytes not counted; "
    sets = (
        (STANDARD_NEURIPS, "Algorithms 0 and 3 to the letter", letter, "11 N^2 + 12 u",
         "too few passes to be what ran"),
        (STANDARD_NEURIPS, "mask in forward and backward, no dropout", mask_both, "15 N^2 + 12 u", ""),
        (STANDARD_NEURIPS, "the same with layout copies", mask_both + extra, "15 N^2 + 30 u",
         "the two sets enclose the published figure"),
        (STANDARD_V2, "dropout with a 1-byte mask, no padding mask", dropout, "16 N^2 + 12 u", ""),
        (STANDARD_V2, "the same with layout copies", dropout + extra, "16 N^2 + 30 u", ""),
        (STANDARD_V2, "dropout, and a mask applied in forward only", mask_forward, "18 N^2 + 12 u",
         "a fit, not a proof"),
    )  # fmt: skip
    for claimed, name, moved_bytes, arithmetic, note in sets:
        version = "arXiv v2" if claimed == STANDARD_V2 else "NeurIPS: key-padding mask, no dropout"
        yield row(
            f"standard, GB ({version}); assumed: {name}", claimed, moved_bytes / GB, "GB",
            f"{arithmetic}, u = one N x d tensor of all heads", every + note if note else every.rstrip("; "),
        )  # fmt: skip


def _flash_rows() -> Iterator[Row]:
    p = figure_problem()
    sets = (
        ("fp16 intermediates of O and dQ, O read once in backward", True, 2, True, "35 u"),
        ("the same, and O and dQ not read at the first key block", False, 2, True, "33 u"),
        ("Algorithms 1 and 4 to the letter", True, 2, False, "38 u"),
        ("fp32 temporaries of the real kernel, no L2", False, 4, True, "45 u"),
    )
    for name, letter, size, once, arithmetic in sets:
        chain = keys_outside(p, BLOCK_K, letter=letter, intermediate_bytes=size, output_once=once)
        whole = moved(chain)
        yield row(
            f"flash, GB; assumed: block_k {BLOCK_K}, {name}", FLASH,
            moved(chain, without=STATISTICS, outside=FILLS) / GB, "GB", arithmetic,
            f"a fit, not a proof; row statistics and zero fills left out ({whole / GB:.2f} GB with them)",
        )  # fmt: skip


def _measured_rows() -> Iterator[Row]:
    """Counters of an H200 on the figure's shape beside the replay's prediction for one."""
    plain, both = figure_problem(), figure_problem(mask="causal", dropout=0.1)
    recorded = recorded_chain("flash_fwdbwd", plain)
    cases = (
        ("naive", "eager", plain, 20.7, 11.5, ""),
        ("naive with mask and dropout", "eager", both, 34.1, 25.5,
         "the mask's type and PyTorch's copies of it are not recorded; the model reads one byte a pair"),
        ("flash", "fa2", plain, recorded["hbm_read"] / GB, recorded["hbm_write"] / GB, ""),
        ("cuDNN", "cudnn", plain, 1.76, 1.07, ""),
    )  # fmt: skip
    for name, kernel, problem, read, written, note in cases:
        prediction = predict(problem, kernel, "h200-sxm", method="replay")
        for direction, value in (("read", read), ("write", written)):
            yield row(
                f"measured on an H200, {name}, fwd+bwd: HBM {direction}", value,
                prediction.total("hbm", direction) / GB,
                "GB", f"predicted for {kernel} by replay", note,
            )  # fmt: skip


def _operation_rows() -> Iterator[Row]:
    p = figure_problem()
    standard_flops = flops(standard(p, standard_kernel(load_profile(GPU), p)))
    flash_flops = flops(keys_outside(p, BLOCK_K, letter=True, intermediate_bytes=2, output_once=True))
    for name, claimed, operations, products in (
        ("standard", 66.6, standard_flops, 6),
        ("flash", 75.2, flash_flops, 7),
    ):
        rest = claimed - operations / GB / 16
        yield row(
            f"operations, {name}, GFLOP", claimed, operations / GB, "GFLOP",
            f"{products} matrix products x 2 N^2 d x 16 heads x 64 sequences; {operations / GB:.1f} / 16 + {rest:.1f} "
            f"gives the published {claimed}",
            "cannot be reproduced: the published figure counts the work of the tensor cores at a sixteenth; no model "
            "is calibrated on it",
        )  # fmt: skip
