"""Checks flash_fwd_sm90 against float64, and times it beside PyTorch's backends, on the Hopper GPU of this machine.

    python experiments/bench_sm90.py check                     # every knob, on small problems, fresh inputs
    python experiments/bench_sm90.py check --quick             # few of them, for compute-sanitizer
    python experiments/bench_sm90.py time --out times.csv      # the fastest beside cuDNN and FlashAttention-2
    python experiments/bench_sm90.py sweep --out sweep.csv     # what each knob is worth
    python experiments/bench_sm90.py orders --out orders.csv   # what the order of tiles and keys is worth
    python experiments/bench_sm90.py pack --out packed.csv     # what query heads that share a tile are worth

Needs PyTorch with CUDA, and nvcc.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from sm90 import BLOCKS, Ragged, Sm90Forward, Sm90Order, Sm90Spec, fastest
from sm90_columns import KNOBS as FORWARD_KNOBS
from sm90_columns import ORDER, PROBLEM
from sm90_variants import variants
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from watch import guarded, prebuild

from iosim.evidence.cuda.launch import Shape
from iosim.evidence.cuda.spec import DIRECTIONS, MASKS
from iosim.evidence.measure.timing import median_ms

TORCH_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
TOLERANCE = {"fp16": 2e-3, "bf16": 1e-2}
LSE_TOLERANCE = 2e-3
LIBRARIES = {"cudnn": SDPBackend.CUDNN_ATTENTION, "pytorch_flash": SDPBackend.FLASH_ATTENTION}
HEAD_DIMS = (64, 128, 256)
KNOBS = (*FORWARD_KNOBS, "pack")
COLUMNS = (*PROBLEM, *KNOBS, *ORDER, "ms", "tflops", "regime", "sm_clock_mhz")
NOTES = {
    "timing": "burst: device events around each call, median of 15 after 3, the GPU idle before each call; sustained: "
    "the mean of calls in a row over the second half of a second, and the SM clock that nvidia-smi reads meanwhile",
    "l2_start": "warm: the call before was the same one",
    "inputs": "random normal",
    "tflops": "multiply-adds counted twice over the kept pairs, 4 head_dim a pair",
}


# ---- Right


@dataclass(frozen=True)
class Problem:
    """One call to check."""

    shape: Shape
    order: Sm90Order
    lengths: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Of the queries and the keys of each sequence; `shape` then has the longest."""
    magnitude: float = 1.0
    shuffled: bool = False
    """Tiles by a random table instead of the order."""
    with_lse: bool = True
    poisoned: int | None = None
    """A sequence of NaN, whose neighbours must not see it."""


def small(spec: Sm90Spec) -> Iterator[Problem]:
    """Problems that reach an instantiation's edges: ragged, grouped, empty rows, large scores, many tiles a CTA."""
    window = 37 if spec.mask == "window" else None
    default = Sm90Order()

    def shape(*sizes: int) -> Shape:
        batch, heads, kv_heads, *lengths = sizes
        return Shape(
            batch,
            kv_heads * spec.pack if spec.pack > 1 else heads,
            kv_heads,
            *lengths,
            spec.head_dim,
            window,
        )

    yield Problem(shape(2, 4, 2, 333, 410), default)
    yield Problem(shape(1, 2, 1, 500, 200), default, with_lse=False)
    yield Problem(shape(3, 2, 2, 1, 777), default)
    yield Problem(shape(1, 2, 1, 300, 400), default, magnitude=30.0)
    if spec.pack == 1:
        yield Problem(
            shape(5, 4, 2, 700, 900),
            default,
            lengths=((5, 300, 700, 129, 1), (900, 300, 64, 33, 640)),
        )
    yield Problem(shape(2, 8, 2, 777, 900), default, shuffled=True)
    lengths = (512, 100, 257)
    if spec.pack == 1:
        yield Problem(
            shape(3, 16, 4, 512, 512), Sm90Order("query"), lengths=(lengths, lengths), poisoned=1
        )
    yield Problem(shape(2, 16, 4, 1000, 1111), Sm90Order("query", "light_first"))
    yield Problem(shape(4, 32, 8, 640, 640), Sm90Order("head", "heavy_first", 8, "descending"))
    yield Problem(shape(2, 16, 16, 1024, 1024), Sm90Order("head", "fold", 3, "alternating"))


def checked_specs() -> list[Sm90Spec]:
    """Every variant with and without a causal mask, the fastest with every mask and type."""
    specs = [fastest(d, mask, dtype) for d in HEAD_DIMS for mask in MASKS for dtype in TORCH_DTYPES]
    for d in HEAD_DIMS:
        specs += [
            *variants(d, "none", "fp16"),
            *variants(d, "causal", "bf16"),
            *variants(d, "window", "bf16")[::3],
        ]
    return list(dict.fromkeys(specs))


def weights(
    q: torch.Tensor, k: torch.Tensor, causal: bool, window: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """P and LSE of q [heads, rows, head_dim] and k [heads, keys, head_dim] in float64."""
    scores = q.double() @ k.double().transpose(-1, -2) * q.shape[-1] ** -0.5
    rows = torch.arange(q.shape[1], device="cuda")
    keys = torch.arange(k.shape[1], device="cuda")
    back = rows[:, None] + (len(keys) - len(rows)) - keys[None, :]
    if causal or window is not None:
        scores = scores.masked_fill(back < 0, -math.inf)
    if window is not None:
        scores = scores.masked_fill(back > window, -math.inf)
    lse = torch.logsumexp(scores, -1)
    return torch.exp(scores - lse.clamp_min(-1e300)[..., None]), lse


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE of q [heads, rows, head_dim] and k, v [kv_heads, keys, head_dim] in float64."""
    k, v = (x.double().repeat_interleave(q.shape[0] // k.shape[0], 0) for x in (k, v))
    p, lse = weights(q, k, causal, window)
    return p @ v, lse


def largest(error: torch.Tensor) -> float:
    """The largest absolute value; NaN counts as infinite."""
    x = error.abs().max().item() if error.numel() else 0.0
    return x if math.isfinite(x) else math.inf


def check(kernel: Sm90Forward, problem: Problem, seed: int) -> tuple[bool, float, float]:
    """Runs a call twice: whether it agrees with float64 and with itself, O's relative and the LSE's largest error."""
    s, spec = problem.shape, kernel.spec
    g = torch.Generator("cuda").manual_seed(seed)
    lengths = problem.lengths or ((s.seq_q,) * s.batch, (s.seq_k,) * s.batch)
    bounds = [
        torch.tensor([0, *itertools.accumulate(x)], dtype=torch.int32, device="cuda")
        for x in lengths
    ]

    def normal(heads: int, which: int) -> torch.Tensor:  # [all rows, heads, head_dim]
        x = (
            torch.randn((sum(lengths[which]), heads, s.head_dim), generator=g, device="cuda")
            * problem.magnitude
        )
        if problem.poisoned is not None:
            x[int(bounds[which][problem.poisoned]) : int(bounds[which][problem.poisoned + 1])] = (
                math.nan
            )
        return x.to(TORCH_DTYPES[spec.dtype])

    packed = {"q": normal(s.heads, 0), "k": normal(s.kv_heads, 1), "v": normal(s.kv_heads, 1)}
    ragged, t = None, packed
    if problem.lengths is None:
        sizes = {name: (s.batch, -1, x.shape[1], s.head_dim) for name, x in packed.items()}
        t = {name: x.view(sizes[name]).transpose(1, 2).contiguous() for name, x in packed.items()}
        lse = torch.full((s.batch, s.heads, s.seq_q), math.nan, device="cuda")
    else:
        ragged = Ragged(
            sum(lengths[0]), sum(lengths[1]), bounds[0].data_ptr(), bounds[1].data_ptr()
        )
        lse = torch.full((s.heads, sum(lengths[0])), math.nan, device="cuda")
    remap = torch.randperm(kernel.tiles(s), generator=g, device="cuda").int()
    o = [torch.full_like(t["q"], math.nan) for _ in range(2)]
    for x in o:
        addresses = {name: x.data_ptr() for name, x in (t | {"o": x}).items()}
        if problem.with_lse:
            addresses["lse"] = lse.data_ptr()
        table = remap.data_ptr() if problem.shuffled else None
        kernel.launch(s, addresses, problem.order, ragged=ragged, remap=table).run()
    torch.cuda.synchronize()
    good = problem.poisoned is not None or torch.equal(*o)
    error = lse_error = 0.0
    for n in range(s.batch):
        if n == problem.poisoned:
            continue
        rows, keys = (slice(int(b[n]), int(b[n + 1])) for b in bounds)
        q, k, v = (
            x.transpose(0, 1) for x in (packed["q"][rows], packed["k"][keys], packed["v"][keys])
        )
        want, want_lse = reference(q, k, v, spec.mask == "causal", s.window)
        got, got_lse = (
            (o[1][n], lse[n]) if ragged is None else (o[1][rows].transpose(0, 1), lse[:, rows])
        )
        empty = want_lse == -math.inf
        good &= bool((got[empty] == 0).all())
        norm = torch.linalg.norm(want).clamp_min(1e-30)
        error = max(error, largest(torch.linalg.norm(got.double() - want) / norm))
        if problem.with_lse:
            good &= bool((got_lse[empty] == -math.inf).all())
            lse_error = max(lse_error, largest((got_lse.double() - want_lse)[~empty]))
    loose = 50 if problem.magnitude > 1 else 1
    return (
        good and error <= TOLERANCE[spec.dtype] and lse_error <= LSE_TOLERANCE * loose,
        error,
        lse_error,
    )


def run_check(specs: list[Sm90Spec], first: int, quick: bool) -> None:
    seed = int.from_bytes(os.urandom(3), "little")
    wrong = 0
    worst: dict[str, tuple[float, float]] = {}
    for i, spec in enumerate(specs[first:], first):
        print("ITEM", i, flush=True)
        kernel = Sm90Forward(spec)
        for n, problem in enumerate(list(small(spec))[: 7 if quick else None]):
            try:
                good, *errors = check(kernel, problem, seed + 100 * i + n)
            except RuntimeError:
                print(f"WRONG {spec} {problem}: no result", flush=True)
                raise
            wrong += not good
            if problem.magnitude == 1:
                old = worst.get(spec.dtype, (0.0, 0.0))
                worst[spec.dtype] = max(old[0], errors[0]), max(old[1], errors[1])
            if not good:
                print(f"WRONG {spec} {problem}: {errors}", flush=True)
    printed = ", ".join(f"{dtype} O {o:.1e} LSE {lse:.1e}" for dtype, (o, lse) in worst.items())
    print(
        f"seed {seed}: {len(specs) - first} instantiations, {wrong} wrong calls; largest errors: {printed}"
    )


# ---- Fast


def flops(s: Shape, causal: bool) -> float:
    """Multiply-adds counted twice, over the kept pairs of sequences of equal length."""
    pairs = s.seq_q * (s.seq_q + 1) // 2 if causal else s.seq_q * s.seq_k
    return 4.0 * s.all_heads * pairs * s.head_dim


def tensors(s: Shape, dtype: str) -> dict[str, torch.Tensor]:
    g = torch.Generator("cuda").manual_seed(7)

    def normal(heads: int, seq: int) -> torch.Tensor:
        return torch.randn((s.batch, heads, seq, s.head_dim), generator=g, device="cuda").to(
            TORCH_DTYPES[dtype]
        )

    t = {
        "q": normal(s.heads, s.seq_q),
        "k": normal(s.kv_heads, s.seq_k),
        "v": normal(s.kv_heads, s.seq_k),
    }
    return t | {"o": torch.empty_like(t["q"])}


def default_order(causal: bool) -> Sm90Order:
    return Sm90Order("head", "heavy_first") if causal else Sm90Order("query", "light_first")


def own_call(
    spec: Sm90Spec, s: Shape, t: dict[str, torch.Tensor], order: Sm90Order
) -> Callable[[], None]:
    launch = Sm90Forward(spec).launch(s, {name: x.data_ptr() for name, x in t.items()}, order)
    return lambda: launch.run(torch.cuda.current_stream().cuda_stream)


def library_output(
    name: str, s: Shape, causal: bool, t: dict[str, torch.Tensor], with_gradient: bool = False
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Q, K, V as one of PyTorch's backends takes them (keys repeated where it refuses them grouped), and its O."""
    group = s.heads // s.kv_heads
    q, k, v = (t[x].detach().requires_grad_(with_gradient) for x in "qkv")
    with sdpa_kernel(LIBRARIES[name]):
        try:
            return [q, k, v], scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=group > 1
            )
        except RuntimeError:
            k, v = (
                t[x].repeat_interleave(group, dim=1).requires_grad_(with_gradient) for x in "kv"
            )
            return [q, k, v], scaled_dot_product_attention(q, k, v, is_causal=causal)


def library_call(
    name: str, s: Shape, causal: bool, t: dict[str, torch.Tensor]
) -> Callable[[], Any]:
    """One of PyTorch's backends on the same problem."""
    (q, k, v), _ = library_output(name, s, causal, t)

    def call() -> Any:
        with sdpa_kernel(LIBRARIES[name]):
            return scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=k.shape[1] < q.shape[1]
            )

    return call


def sustained_ms(call: Callable[[], Any], ms: float) -> tuple[float, str]:
    """Milliseconds of a call in the second half of a second of them, and the SM clock (MHz) that nvidia-smi reads."""
    calls = max(int(500 / ms), 2)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for n in range(2 * calls):
        if n == calls:
            start.record()
        call()
    end.record()
    time.sleep(0.4)
    query = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
    clock = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / calls, clock


def row(
    name: str,
    s: Shape,
    causal: bool,
    dtype: str,
    ms: float,
    spec: Sm90Spec | None = None,
    order: Sm90Order | None = None,
    clock: str = "",
) -> str:
    """Hands a row of the table to the parent, and gives its TFLOP/s."""
    rate = f"{flops(s, causal) / ms / 1e9:.1f}"
    problem = [name, s.batch, s.heads, s.kv_heads, s.seq_q, s.seq_k, s.head_dim, int(causal), dtype]
    knobs = [getattr(spec, knob, "") for knob in KNOBS] + [
        getattr(order, knob, "") for knob in ORDER
    ]
    print(
        "ROW",
        ",".join(
            map(
                str, [*problem, *knobs, f"{ms:.4f}", rate, "sustained" if clock else "burst", clock]
            )
        ),
    )
    return rate


def timed_problems(head_dim: int) -> Iterator[tuple[Shape, str, bool]]:
    """Shape, type and mask of the table of speeds: as many tokens in each."""
    tokens = 131_072 if head_dim < 256 else 65_536
    shapes = [
        (tokens // seq, tokens // seq, seq, "bf16") for seq in (2048, 4096, 8192, 16384, 32768)
    ]
    shapes += [
        (tokens // 4096, tokens // 4096, 4096, "fp16"),
        (tokens // 4096, tokens // 16384, 4096, "bf16"),
    ]
    shapes += [(tokens // 16384, tokens // 65536, 16384, "bf16")]
    for (heads, kv_heads, seq, dtype), causal in itertools.product(shapes, (False, True)):
        yield Shape(1, heads, kv_heads, seq, seq, head_dim), dtype, causal


def run_time(problems: list[tuple[Shape, str, bool]], first: int) -> None:
    """The fastest instantiation beside PyTorch's backends, in bursts, and sustained at 16,384 tokens."""
    for i, (s, dtype, causal) in enumerate(problems[first:], first):
        print("ITEM", i, flush=True)
        t = tensors(s, dtype)
        spec = fastest(s.head_dim, "causal" if causal else "none", dtype)
        order = default_order(causal)
        calls = {"flash_fwd_sm90": own_call(spec, s, t, order)}
        calls |= {name: library_call(name, s, causal, t) for name in LIBRARIES}
        mine = {"flash_fwd_sm90": (spec, order)}
        bursts = {name: median_ms(call, False) for name, call in calls.items()}
        parts = [
            f"{name} {row(name, s, causal, dtype, ms, *mine.get(name, ()))}"
            for name, ms in bursts.items()
        ]
        for name, call in calls.items():
            if s.seq_q == 16384 and s.heads == s.kv_heads:
                time.sleep(1)
                ms, clock = sustained_ms(call, bursts[name])
                rate = row(name, s, causal, dtype, ms, *mine.get(name, (None, None)), clock)
                parts.append(f"{name} sustained {rate} at {clock} MHz")
                time.sleep(1)
        shape = f"{s.head_dim} {s.heads}/{s.kv_heads} x {s.seq_q} {'causal' if causal else 'full'} {dtype}"
        print(shape, *parts, flush=True)


def sweep_shapes(head_dim: int) -> tuple[Shape, ...]:
    return tuple(
        s for s, dtype, causal in timed_problems(head_dim) if dtype == "bf16" and not causal
    )[:4]


def run_sweep(specs: list[Sm90Spec], first: int) -> None:
    """Every variant on 2,048 to 16,384 tokens, with and without a causal mask."""
    for i, spec in enumerate(specs[first:], first):
        print("ITEM", i, flush=True)
        rates = []
        for s, causal in itertools.product(sweep_shapes(spec.head_dim), (False, True)):
            masked, order = (
                replace(spec, mask="causal" if causal else "none"),
                default_order(causal),
            )
            ms = median_ms(own_call(masked, s, tensors(s, spec.dtype), order), False)
            rates.append(row("flash_fwd_sm90", s, causal, spec.dtype, ms, masked, order))
        print(
            spec.head_dim,
            *(f"{rate:>6}" for rate in rates),
            *(getattr(spec, knob) for knob in KNOBS),
            flush=True,
        )


def orders(heads: int) -> list[Sm90Order]:
    """Both orders, sections of a half and a quarter of the heads; all orders of query blocks; all directions."""
    sections = [("query", 0), ("head", 0), ("head", heads // 2), ("head", heads // 4)]
    return [
        Sm90Order(o, b, n, d) for (o, n), b, d in itertools.product(sections, BLOCKS, DIRECTIONS)
    ]


def run_orders(shapes: list[Shape], first: int) -> None:
    """The fastest instantiation under every order."""
    for i, s in enumerate(shapes[first:], first):
        print("ITEM", i, flush=True)
        t, rates = tensors(s, "bf16"), {}
        for causal, order in itertools.product((False, True), orders(s.heads)):
            spec = fastest(s.head_dim, "causal" if causal else "none")
            ms = median_ms(own_call(spec, s, t, order), False)
            rates[causal, order] = float(row("flash_fwd_sm90", s, causal, "bf16", ms, spec, order))
        for causal in (False, True):
            ranked = sorted((rate, str(order)) for (c, order), rate in rates.items() if c == causal)
            print(s, "causal" if causal else "full", *ranked[0], *ranked[-1], flush=True)


def packed_shapes() -> list[Shape]:
    """Few queries, as one decodes or checks a draft, against many keys of several sequences; and many queries."""
    few = [Shape(16, 32, 8, seq, 8192, 128) for seq in (1, 4, 16, 64, 256)]
    return [
        *few,
        Shape(16, 64, 8, 1, 8192, 128),
        Shape(16, 64, 8, 16, 8192, 128),
        Shape(1, 32, 8, 4096, 4096, 128),
    ]


def run_pack(shapes: list[Shape], first: int) -> None:
    """The fastest instantiation with the heads of a group in one tile or not, beside PyTorch's backends."""
    for i, s in enumerate(shapes[first:], first):
        print("ITEM", i, flush=True)
        t, parts = tensors(s, "bf16"), []
        for pack in (1, s.heads // s.kv_heads):
            spec = replace(fastest(s.head_dim), pack=pack)
            order = default_order(False)
            ms = median_ms(own_call(spec, s, t, order), False)
            row("flash_fwd_sm90", s, False, "bf16", ms, spec, order)
            parts.append(f"pack {pack} {ms:.4f} ms")
        for name in LIBRARIES:
            ms = median_ms(library_call(name, s, False, t), False)
            row(name, s, False, "bf16", ms)
            parts.append(f"{name} {ms:.4f} ms")
        print(s, *parts, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("check", "time", "sweep", "orders", "pack"))
    parser.add_argument("--quick", action="store_true", help="check a part, small problems only")
    parser.add_argument(
        "--head-dim", type=int, nargs="+", default=list(HEAD_DIMS), choices=HEAD_DIMS
    )
    parser.add_argument("--out", type=Path, help="CSV to write (all but check)")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    a = parser.parse_args()
    items: list[Any]
    if a.what == "check":
        items = [spec for spec in checked_specs() if spec.head_dim in a.head_dim][
            :: 23 if a.quick else 1
        ]
        specs = items
        run = partial(run_check, quick=a.quick)
    elif a.what == "time":
        items = [problem for d in a.head_dim for problem in timed_problems(d)]
        run = run_time
        specs = [
            fastest(s.head_dim, "causal" if causal else "none", dtype) for s, dtype, causal in items
        ]
    elif a.what == "sweep":
        several = [
            replace(x, mask="none") for d in a.head_dim for x in variants(d) + variants(d, "causal")
        ]
        items = [spec for spec in dict.fromkeys(several) if spec.pack == 1]
        run = run_sweep
        specs = [replace(spec, mask=mask) for spec in items for mask in ("none", "causal")]
    elif a.what == "pack":
        items, run = packed_shapes(), run_pack
        specs = [
            replace(fastest(s.head_dim), pack=pack)
            for s in items
            for pack in (1, s.heads // s.kv_heads)
        ]
    else:
        items = [s for d in a.head_dim for s in sweep_shapes(d)]
        run = run_orders
        specs = [fastest(d, mask) for d in a.head_dim for mask in ("none", "causal")]
    if a.worker is not None:
        run(items, a.worker)
        return 0
    prebuild(specs)
    return guarded(len(items), a.out, COLUMNS, NOTES)


if __name__ == "__main__":
    sys.exit(main())
