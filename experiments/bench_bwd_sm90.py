"""Checks flash_bwd_sm90 against float64, and times it beside PyTorch's backends, on the Hopper GPU of this machine.

    python experiments/bench_bwd_sm90.py check                     # every knob, on small problems, fresh inputs
    python experiments/bench_bwd_sm90.py check --quick             # few of them, for compute-sanitizer
    python experiments/bench_bwd_sm90.py time --out times.csv      # the fastest beside cuDNN and FlashAttention-2
    python experiments/bench_bwd_sm90.py sweep --out sweep.csv     # what each knob is worth
    python experiments/bench_bwd_sm90.py orders --out orders.csv   # what the order of key and query blocks is worth

Needs PyTorch with CUDA, and nvcc. Times are of all launches of a call.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from bench_sm90 import (
    LIBRARIES,
    ORDER,
    PROBLEM,
    TORCH_DTYPES,
    flops,
    library_output,
    sweep_shapes,
    timed_problems,
    weights,
)
from sm90 import BLOCKS, Ragged, Sm90Forward, Sm90Order, fastest
from sm90_bwd import Sm90Backward, Sm90BwdSpec, fastest_backward
from sm90_variants import backward_variants
from watch import guarded, prebuild

from iosim.evidence.cuda.launch import Launch, Shape
from iosim.evidence.cuda.spec import DIRECTIONS, MASKS
from iosim.evidence.measure.timing import median_ms

TOLERANCE = {"fp16": 2e-3, "bf16": 1.2e-2}
HEAD_DIMS = (64, 128)
KNOBS = ("block_q", "stages", "score_stages", "sums", "overlap")
COLUMNS = (*PROBLEM, *KNOBS, *ORDER, "ms", "tflops", "regime", "sm_clock_mhz")
NOTES = {
    "timing": "device events around each call (all its launches), median of 15 after 3, the GPU idle before each call",
    "l2_start": "warm: the call before was the same one",
    "inputs": "random normal",
    "tflops": "multiply-adds counted twice over the kept pairs, 10 head_dim a pair",
}
GRADIENTS = ("dq", "dk", "dv")


# ---- Right


@dataclass(frozen=True)
class Problem:
    """One call to check."""

    shape: Shape
    order: Sm90Order
    lengths: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Of the queries and the keys of each sequence; `shape` then has the longest."""
    magnitude: float = 1.0
    poisoned: int | None = None
    """A sequence of NaN, whose neighbours must not see it."""


def small(spec: Sm90BwdSpec) -> Iterator[Problem]:
    """Problems that reach an instantiation's edges: ragged, grouped, empty rows and keys, large scores, every order."""
    window = 37 if spec.mask == "window" else None

    def shape(*sizes: int) -> Shape:
        return Shape(*sizes, spec.head_dim, window)

    yield Problem(shape(2, 4, 2, 333, 410), Sm90Order("query"))
    yield Problem(shape(1, 2, 1, 500, 200), Sm90Order("head"))
    yield Problem(shape(3, 2, 2, 1, 777), Sm90Order("head"))
    yield Problem(shape(1, 2, 1, 300, 400), Sm90Order("query"), magnitude=30.0)
    yield Problem(
        shape(5, 4, 2, 700, 900),
        Sm90Order("head"),
        lengths=((5, 300, 700, 129, 1), (900, 300, 64, 33, 640)),
    )
    lengths = (512, 100, 257)
    yield Problem(
        shape(3, 16, 4, 512, 512), Sm90Order("query"), lengths=(lengths, lengths), poisoned=1
    )
    yield Problem(shape(2, 16, 4, 1000, 1111), Sm90Order("query", direction="descending"))
    yield Problem(shape(4, 32, 8, 640, 640), Sm90Order("head", "heavy_first", 8, "alternating"))
    if spec.sums != "ordered":
        yield Problem(shape(2, 16, 16, 1024, 1024), Sm90Order("head", "fold", 3))
        yield Problem(
            shape(1, 16, 16, 1024, 1500), Sm90Order("query", "light_first", 0, "descending")
        )


def checked_specs() -> list[Sm90BwdSpec]:
    """Every instantiation with a causal mask, the fastest with every mask and type, ordered sums or not."""
    specs = [
        fastest_backward(d, mask, dtype, ordered)
        for d, mask, dtype, ordered in itertools.product(
            HEAD_DIMS, MASKS, TORCH_DTYPES, (False, True)
        )
    ]
    for d in HEAD_DIMS:
        specs += backward_variants(d, "causal", "bf16")
        specs += [
            replace(spec, mask="window") for spec in backward_variants(d, "none", "fp16")[::4]
        ]
    return list(dict.fromkeys(specs))


def gradients(
    t: dict[str, torch.Tensor], causal: bool, window: int | None
) -> dict[str, torch.Tensor]:
    """O and LSE, and dQ, dK, dV, in float64: of q, d_o [heads, rows, head_dim] and k, v [kv_heads, keys, head_dim]."""
    heads = t["q"].shape[0]
    kv_heads = t["k"].shape[0]
    q = t["q"].double()
    d_o = t["d_o"].double()
    k, v = (t[x].double().repeat_interleave(heads // kv_heads, 0) for x in "kv")
    p, lse = weights(q, k, causal, window)
    d_p = d_o @ v.transpose(-1, -2)
    d_s = p * (d_p - (p * d_p).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5

    def of_group(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(0, (kv_heads, -1)).sum(1)

    d_k = of_group(d_s.transpose(-1, -2) @ q)
    d_v = of_group(p.transpose(-1, -2) @ d_o)
    return {"o": p @ v, "lse": lse, "dq": d_s @ k, "dk": d_k, "dv": d_v}


def error_of(got: torch.Tensor, want: torch.Tensor, magnitude: float) -> float:
    """|got - want| / |want| in the Frobenius norm; NaN and infinities count as infinite.

    Where large scores leave one key a row, dS is nothing but the rounding of O: |want| then has 1 / magnitude of the
    norm that inputs of that size would give it.
    """
    scale = magnitude * want.numel() ** 0.5 if magnitude > 1 else 1e-9
    error = (torch.linalg.norm(got.double() - want) / (torch.linalg.norm(want) + scale)).item()
    return error if math.isfinite(error) else math.inf


def check(kernel: Sm90Backward, problem: Problem, seed: int) -> tuple[bool, dict[str, float]]:
    """Runs a call twice: whether it agrees with float64 and with itself, and the relative errors of the gradients."""
    s, spec = problem.shape, kernel.spec
    g = torch.Generator("cuda").manual_seed(seed)
    lengths = problem.lengths or ((s.seq_q,) * s.batch, (s.seq_k,) * s.batch)
    bounds = [
        torch.tensor([0, *itertools.accumulate(x)], dtype=torch.int32, device="cuda")
        for x in lengths
    ]
    places = [[slice(int(b[n]), int(b[n + 1])) for n in range(s.batch)] for b in bounds]
    dtype = TORCH_DTYPES[spec.dtype]

    def normal(
        heads: int, which: int, magnitude: float = 1.0
    ) -> torch.Tensor:  # [all rows, heads, head_dim]
        x = (
            torch.randn((sum(lengths[which]), heads, s.head_dim), generator=g, device="cuda")
            * magnitude
        )
        if problem.poisoned is not None:
            x[places[which][problem.poisoned]] = torch.nan
        return x.to(dtype)

    packed = {
        "q": normal(s.heads, 0, problem.magnitude),
        "k": normal(s.kv_heads, 1, problem.magnitude),
    }
    packed |= {"v": normal(s.kv_heads, 1), "d_o": normal(s.heads, 0)}
    packed["o"], lse = (
        torch.full_like(packed["q"], torch.nan),
        torch.full((s.heads, sum(lengths[0])), torch.nan),
    )
    lse = lse.cuda()
    wanted = []
    for rows, keys in zip(*places, strict=True):
        arrays = {
            name: x[rows if name in ("q", "d_o") else keys].transpose(0, 1)
            for name, x in packed.items()
            if name != "o"
        }
        wanted.append(gradients(arrays, spec.mask == "causal", s.window))
        packed["o"][rows], lse[:, rows] = (
            wanted[-1]["o"].transpose(0, 1).to(dtype),
            wanted[-1]["lse"].float(),
        )
    ragged, t = None, packed | {"lse": lse}
    if problem.lengths is None:
        sizes = {name: (s.batch, -1, x.shape[1], s.head_dim) for name, x in packed.items()}
        t = {name: x.view(sizes[name]).transpose(1, 2).contiguous() for name, x in packed.items()}
        t["lse"] = lse.view(s.heads, s.batch, s.seq_q).transpose(0, 1).contiguous()
    else:
        ragged = Ragged(
            sum(lengths[0]), sum(lengths[1]), bounds[0].data_ptr(), bounds[1].data_ptr()
        )
    runs = []
    for _ in range(2):
        got = {name: torch.full_like(t[name[1:]], torch.nan) for name in GRADIENTS}
        runs.append(t | got)
        for launch in own_launches(kernel, s, runs[-1], problem.order, ragged):
            launch.run()
    torch.cuda.synchronize()
    good, errors = True, dict.fromkeys(GRADIENTS, 0.0)
    same = GRADIENTS if spec.sums == "ordered" else ("dk", "dv")
    if problem.poisoned is None:
        good = all(torch.equal(runs[0][name], runs[1][name]) for name in same)
    for n, want in enumerate(wanted):
        if n == problem.poisoned:
            continue
        for name in GRADIENTS:
            place = places[name != "dq"][n]
            got = runs[1][name][n] if ragged is None else runs[1][name][place].transpose(0, 1)
            errors[name] = max(errors[name], error_of(got, want[name], problem.magnitude))
    return good and max(errors.values()) <= TOLERANCE[spec.dtype], errors


def run_check(specs: list[Sm90BwdSpec], first: int, quick: bool) -> None:
    seed = int.from_bytes(os.urandom(3), "little")
    wrong = 0
    worst: dict[str, dict[str, float]] = {}
    for i, spec in enumerate(specs[first:], first):
        print("ITEM", i, flush=True)
        kernel = Sm90Backward(spec)
        for n, problem in enumerate(list(small(spec))[: 5 if quick else None : 2 if quick else 1]):
            try:
                good, errors = check(kernel, problem, seed + 100 * i + n)
            except RuntimeError:
                print(f"WRONG {spec} {problem}: no result", flush=True)
                raise
            wrong += not good
            if problem.magnitude == 1:
                old = worst.get(spec.dtype, {})
                worst[spec.dtype] = {name: max(old.get(name, 0.0), x) for name, x in errors.items()}
            if not good:
                print(f"WRONG {spec} {problem}: {errors}", flush=True)
    printed = "; ".join(
        dtype + "".join(f" {name} {x:.1e}" for name, x in by.items()) for dtype, by in worst.items()
    )
    print(
        f"seed {seed}: {len(specs) - first} instantiations, {wrong} wrong calls; largest errors: {printed}"
    )


# ---- Fast


def own_launches(
    kernel: Sm90Backward,
    s: Shape,
    t: dict[str, torch.Tensor],
    order: Sm90Order,
    ragged: Ragged | None = None,
) -> list[Launch]:
    """The launches of a call; its workspace starts as NaN and lives as long as `t`."""
    sizes = kernel.workspace(s, ragged)
    for name, size in vars(sizes).items():
        t[name] = torch.full((size // 4,), torch.nan, device="cuda")
    return kernel.launches(s, {name: x.data_ptr() for name, x in t.items()}, order, ragged=ragged)


def random_tensors(s: Shape, dtype: str) -> dict[str, torch.Tensor]:
    """Inputs, an O and LSE that are theirs only in size, and room for the gradients."""
    g = torch.Generator("cuda").manual_seed(7)

    def normal(heads: int, seq: int) -> torch.Tensor:
        return torch.randn((s.batch, heads, seq, s.head_dim), generator=g, device="cuda").to(
            TORCH_DTYPES[dtype]
        )

    t = {name: normal(s.heads, s.seq_q) for name in ("q", "d_o", "o")}
    t |= {name: normal(s.kv_heads, s.seq_k) for name in "kv"}
    t["lse"] = torch.full((s.batch, s.heads, s.seq_q), math.log(s.seq_k) + 0.5, device="cuda")
    return t | {name: torch.empty_like(t[name[1:]]) for name in GRADIENTS}


def tensors(s: Shape, dtype: str, causal: bool) -> dict[str, torch.Tensor]:
    """The same with O and LSE by flash_fwd_sm90."""
    t = random_tensors(s, dtype)
    kernel = Sm90Forward(fastest(s.head_dim, "causal" if causal else "none", dtype))
    kernel.launch(s, {name: t[name].data_ptr() for name in ("q", "k", "v", "o", "lse")}).run()
    torch.cuda.synchronize()
    return t


def default_order(causal: bool) -> Sm90Order:
    return Sm90Order("head" if causal else "query")


def own_call(
    spec: Sm90BwdSpec, s: Shape, t: dict[str, torch.Tensor], order: Sm90Order
) -> Callable[[], None]:
    launches, stream = (
        own_launches(Sm90Backward(spec), s, t, order),
        torch.cuda.current_stream().cuda_stream,
    )

    def call() -> None:
        for launch in launches:
            launch.run(stream)

    return call


def library_call(
    name: str, s: Shape, causal: bool, t: dict[str, torch.Tensor]
) -> Callable[[], Any]:
    """The backward of one of PyTorch's backends, whose keys are repeated where it refuses them grouped."""
    leaves, o = library_output(name, s, causal, t, with_gradient=True)
    return partial(torch.autograd.grad, o, leaves, t["d_o"], retain_graph=True)


def row(
    name: str,
    s: Shape,
    causal: bool,
    dtype: str,
    ms: float,
    spec: Sm90BwdSpec | None = None,
    order: Sm90Order | None = None,
) -> str:
    """Hands a row of the table to the parent, and gives its TFLOP/s."""
    rate = f"{2.5 * flops(s, causal) / ms / 1e9:.1f}"
    problem = [name, s.batch, s.heads, s.kv_heads, s.seq_q, s.seq_k, s.head_dim, int(causal), dtype]
    knobs = [getattr(spec, knob, "") for knob in KNOBS] + [
        getattr(order, knob, "") for knob in ORDER
    ]
    print("ROW", ",".join(map(str, [*problem, *knobs, f"{ms:.4f}", rate, "burst", ""])))
    return rate


def run_time(problems: list[tuple[Shape, str, bool]], first: int) -> None:
    """The fastest instantiation, with ordered sums or not, beside PyTorch's backends."""
    for i, (s, dtype, causal) in enumerate(problems[first:], first):
        print("ITEM", i, flush=True)
        t, order, mask = (
            tensors(s, dtype, causal),
            default_order(causal),
            "causal" if causal else "none",
        )
        parts = []
        for name, ordered in (("flash_bwd_sm90", False), ("flash_bwd_sm90_ordered", True)):
            spec = fastest_backward(s.head_dim, mask, dtype, ordered)
            ms = median_ms(own_call(spec, s, t, order), False)
            parts.append(f"{name} {row(name, s, causal, dtype, ms, spec, order)}")
        for name in LIBRARIES:
            ms = median_ms(library_call(name, s, causal, t), False)
            parts.append(f"{name} {row(name, s, causal, dtype, ms)}")
        shape = f"{s.head_dim} {s.heads}/{s.kv_heads} x {s.seq_q} {'causal' if causal else 'full'} {dtype}"
        print(shape, *parts, flush=True)


def swept(head_dim: int) -> list[Sm90BwdSpec]:
    """Every way to add and to overlap; other stages of the fastest and of the plainest."""
    first = fastest_backward(head_dim)
    plain = replace(first, sums="copied", overlap="same_queries")
    staged = {
        replace(x, stages=n, score_stages=s)
        for x in (first, plain)
        for n in (1, 2, 3)
        for s in (1, 2)
    }
    return [
        spec
        for spec in backward_variants(head_dim)
        if spec in staged or (spec.stages, spec.score_stages) == (first.stages, first.score_stages)
    ]


def run_sweep(specs: list[Sm90BwdSpec], first: int) -> None:
    """Every instantiation on 4,096 and 16,384 tokens, with and without a causal mask, keys or heads fastest."""
    for i, spec in enumerate(specs[first:], first):
        print("ITEM", i, flush=True)
        rates = []
        for s, causal in itertools.product(sweep_shapes(spec.head_dim)[1::2], (False, True)):
            masked, t = (
                replace(spec, mask="causal" if causal else "none"),
                tensors(s, spec.dtype, causal),
            )
            for order in (Sm90Order("query"), Sm90Order("head")):
                ms = median_ms(own_call(masked, s, t, order), False)
                rates.append(row("flash_bwd_sm90", s, causal, spec.dtype, ms, masked, order))
        print(
            spec.head_dim,
            *(f"{rate:>6}" for rate in rates),
            *(getattr(spec, knob) for knob in KNOBS),
            flush=True,
        )


def run_orders(shapes: list[Shape], first: int) -> None:
    """The fastest instantiation under every order."""
    for i, s in enumerate(shapes[first:], first):
        print("ITEM", i, flush=True)
        for causal in (False, True):
            t, rates = tensors(s, "bf16", causal), {}
            spec = fastest_backward(s.head_dim, "causal" if causal else "none")
            sections = [("query", 0), ("head", 0), ("head", s.heads // 2), ("head", s.heads // 4)]
            for (name, section), blocks, direction in itertools.product(
                sections, BLOCKS, DIRECTIONS
            ):
                order = Sm90Order(name, blocks, section, direction)
                ms = median_ms(own_call(spec, s, t, order), False)
                rates[float(row("flash_bwd_sm90", s, causal, "bf16", ms, spec, order))] = order
            least, highest = min(rates), max(rates)
            print(
                s,
                "causal" if causal else "full",
                least,
                rates[least],
                highest,
                rates[highest],
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("check", "time", "sweep", "orders"))
    parser.add_argument("--quick", action="store_true", help="check a part, small problems only")
    parser.add_argument(
        "--head-dim", type=int, nargs="+", default=list(HEAD_DIMS), choices=HEAD_DIMS
    )
    parser.add_argument("--out", type=Path, help="CSV to write (time, sweep, orders)")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    a = parser.parse_args()
    items: list[Any]
    if a.what == "check":
        items = [spec for spec in checked_specs() if spec.head_dim in a.head_dim]
        if a.quick:
            items = list({(spec.head_dim, spec.sums): spec for spec in items}.values())
        specs = items
        run = partial(run_check, quick=a.quick)
    elif a.what == "time":
        items = [problem for d in a.head_dim for problem in timed_problems(d)]
        run = run_time
        specs = [
            fastest_backward(s.head_dim, "causal" if causal else "none", dtype, ordered)
            for (s, dtype, causal), ordered in itertools.product(items, (False, True))
        ]
    elif a.what == "sweep":
        items = [spec for d in a.head_dim for spec in swept(d)]
        run = run_sweep
        specs = [replace(spec, mask=mask) for spec in items for mask in ("none", "causal")]
    else:
        items = [s for d in a.head_dim for s in sweep_shapes(d)]
        run = run_orders
        specs = [fastest_backward(d, mask) for d in a.head_dim for mask in ("none", "causal")]
    if a.worker is not None:
        run(items, a.worker)
        return 0
    prebuild(specs)
    return guarded(len(items), a.out, COLUMNS, NOTES)


if __name__ == "__main__":
    sys.exit(main())
