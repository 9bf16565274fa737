"""What runs a chain: `python -m iosim.evidence.measure.chain_run check PLAN.json DONE.jsonl`, or `... range CASE.json`.

`check` holds every call against float64 on fresh inputs and, where the plan says so, launches the call again with the
profiler on, behind a launch that marks where a call begins. `range` makes one call between cudaProfilerStart and
cudaProfilerStop; the profiler starts that process again for every pass, so its inputs are the same each time.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from iosim.base.errors import InputError
from iosim.evidence.measure.case import TOLERANCE
from iosim.evidence.measure.chain_case import OWN, ChainCase
from iosim.evidence.measure.harness import (
    TORCH_DTYPES,
    gradients,
    inputs,
    launches,
    reference,
    reference_rows,
    relative,
    workspace,
)

BACKENDS = {
    "math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
}  # fmt: skip
SEED, WARM_UPS = 7, 2

Tensors = dict[str, torch.Tensor]


def prepared(case: ChainCase, seed: int) -> tuple[Tensors, Callable[[], Tensors]]:
    """Inputs of a call, and the call: each run makes all launches of the chain and gives O (and dq, dk, dv)."""
    t = inputs(case.problem, seed)
    if case.chain == OWN:
        return t, _own(case, t)
    both = case.passes == "fwd+bwd"
    if both:
        g = torch.Generator(t["q"].device).manual_seed(seed + 1)
        t["d_o"] = torch.randn(t["q"].shape, generator=g, device=t["q"].device).to(TORCH_DTYPES[case.dtype])
    leaves = [t[name].requires_grad_(both) for name in "qkv"]

    def run() -> Tensors:
        with torch.set_grad_enabled(both):
            o = _attend(case.chain, *leaves)
        if not both:
            return {"o": o}
        gradients = torch.autograd.grad(o, leaves, t["d_o"])
        return {"o": o.detach(), **dict(zip(("dq", "dk", "dv"), gradients, strict=True))}

    return t, run


def _attend(chain: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if chain == "naive":
        return torch.softmax((q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2), dim=-1) @ v
    with sdpa_kernel(BACKENDS[chain]):
        return scaled_dot_product_attention(q, k, v)


def _own(case: ChainCase, t: Tensors) -> Callable[[], Tensors]:
    made_of = t | workspace(case.problem, t)
    planned = launches(case.problem, made_of)

    def run() -> Tensors:
        for launch in planned:
            launch.run()
        return {"o": made_of["o"]}

    return run


def errors(case: ChainCase, seed: int) -> dict[str, float]:
    """Relative errors of a call's outputs against float64, on inputs of this seed."""
    t, run = prepared(case, seed)
    got = run()
    t = {name: x.detach() for name, x in t.items()}
    rows = reference_rows(case.problem)
    want, _ = reference(case.problem, t, rows)
    error_of = {"o": relative(got["o"][:, :, rows], want)}
    if case.passes == "fwd+bwd":
        grads = gradients(case.problem, t)
        error_of |= {name: relative(got[name], grads[name]) for name in ("dq", "dk", "dv")}
    return error_of


def checked(case: ChainCase) -> None:
    """Raises InputError where a call's outputs are not attention's, on fresh inputs."""
    error_of = errors(case, int.from_bytes(os.urandom(3), "little"))
    if not all(error <= TOLERANCE[case.dtype] for error in error_of.values()):
        raise InputError(f"wrong against float64: {error_of}")


def once(case: ChainCase, *, mark: bool) -> None:
    """One call with the profiler on, after WARM_UPS without; with `mark`, behind a launch that does nothing."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    _, run = prepared(case, SEED)
    for _ in range(WARM_UPS):
        run()
    torch.cuda.synchronize()
    runtime.cudaProfilerStart()
    if mark:
        torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
    kept = run()
    torch.cuda.synchronize()
    runtime.cudaProfilerStop()
    del kept


def check_all(calls: list[dict[str, Any]], out: TextIO) -> None:
    """Checks calls, and makes those to be profiled; a JSON line each, with `left_out`, the reason, where it failed."""
    for call in calls:
        case = ChainCase(**call["case"])
        answer: dict[str, str] = {}
        try:
            checked(case)
            torch.cuda.empty_cache()
            if call["profile"]:
                once(case, mark=True)
        except (InputError, RuntimeError) as error:  # torch raises RuntimeError for a refusal or short memory
            answer = {"left_out": str(error).splitlines()[0]}
        torch.cuda.empty_cache()
        out.write(json.dumps(answer) + "\n")
        out.flush()


def main() -> int:
    what, plan = sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    if what == "range":
        once(ChainCase(**plan), mark=False)
        return 0
    with Path(sys.argv[3]).open("w", encoding="utf-8") as out:
        check_all(plan, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
