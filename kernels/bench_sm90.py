"""Checks flash_fwd_sm90 against float64, and times it beside PyTorch's backends, on the Hopper GPU of this machine.

    python kernels/bench_sm90.py check                    # every instantiation of KNOBS, small problems, fresh inputs
    python kernels/bench_sm90.py check --quick            # few, for compute-sanitizer
    python kernels/bench_sm90.py sweep --head-dim 128     # which knobs are fastest
    python kernels/bench_sm90.py time --out times.csv     # the table of speeds

Needs PyTorch with CUDA, and nvcc.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

import torch
from sm90 import PIPELINES, SCHEDULES, TURNS, Ragged, Sm90Forward, Sm90Order, Sm90Spec, fastest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from iosim.files import write_whole
from iosim.kernelbuild import build
from iosim.kernelbuild.launch import Shape
from iosim.measure.machine import facts, write_provenance
from iosim.measure.timing import median_ms

MASKS = ("none", "causal", "window")
TORCH_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
TOLERANCE = {"fp16": 2e-3, "bf16": 1e-2}
LSE_TOLERANCE = 2e-3
SILENT_S, MOST_LOST = 30, 4
"""A worker that prints nothing for so long hangs; so many may."""
KNOBS = ("consumers", "block_k", "stages", "q_stages", "schedule", "cluster", "pipeline", "turns", "poly")
PROBLEM = ("implementation", "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "causal", "dtype")
COLUMNS = (*PROBLEM, *KNOBS, "order", "blocks", "ms", "tflops", "regime", "sm_clock_mhz")
NOTES = {
    "timing": "burst: device events around each call, median of 15 after 3, the GPU idle before each call; sustained: the mean "
    "of calls in a row over the second half of a second, and the SM clock that nvidia-smi reads meanwhile",
    "l2_start": "warm: the call before was the same one",
    "inputs": "random normal",
    "tflops": "multiply-adds counted twice over the kept pairs, 4 head_dim a pair",
}

BASE = {64: Sm90Spec(64, 3, 128, 2, 2), 128: Sm90Spec(128, 2, 128, 2, 2), 256: Sm90Spec(256, 2, 80, 2, 1)}
"""The instantiation from which the others differ in a knob or two."""


def knobs() -> list[Sm90Spec]:
    """Instantiations in which each knob takes each of its values at least once, at each head_dim that has it."""
    specs = [fastest(d, mask, dtype) for d in BASE for mask in MASKS for dtype in TORCH_DTYPES]
    for d, best in BASE.items():
        for mask, dtype in itertools.product(("none", "causal", "window"), ("fp16", "bf16")):
            specs.append(replace(best, mask=mask, dtype=dtype))
        for mask in ("none", "causal"):
            for pipeline, turns in itertools.product(PIPELINES, TURNS):
                specs.append(replace(best, mask=mask, pipeline=pipeline, turns=turns))
            for schedule, cluster in itertools.product(("one_tile", "static", "dynamic"), (1, 2)):
                block_k = 64 if d == 256 else best.block_k
                specs.append(replace(best, mask=mask, block_k=block_k, schedule=schedule, cluster=cluster))
            specs += [replace(best, mask=mask, poly=p) for p in (2, 4, 8)]
            specs += [replace(best, mask=mask, q_stages=1)]
    specs += [replace(BASE[64], consumers=4, block_k=64, mask="causal", pipeline=p) for p in PIPELINES]
    specs += [replace(BASE[64], consumers=2, block_k=k, mask="causal") for k in (64, 80, 96, 160, 176, 192)]
    specs += [replace(BASE[64], stages=s, mask="causal", pipeline=p) for s in (3, 4) for p in ("overlapped", "interleaved")]
    specs += [replace(BASE[128], block_k=k, q_stages=1, mask="causal") for k in (64, 80, 96, 160, 176)]
    specs += [replace(BASE[128], block_k=64, stages=s, mask="window") for s in (3, 4)]
    specs += [replace(BASE[128], consumers=3, block_k=64, q_stages=q, mask="causal") for q in (1, 2)]
    return list(dict.fromkeys(specs))


@dataclass(frozen=True)
class Problem:
    shape: Shape
    causal: bool = False
    order: Sm90Order = Sm90Order()
    lengths: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Of the queries and the keys of each sequence; the shape then has the longest."""
    magnitude: float = 1.0
    shuffled: bool = False
    with_lse: bool = True


def small(spec: Sm90Spec) -> Iterator[Problem]:
    """Small problems that reach the edges of an instantiation: ragged, grouped, empty rows, large scores, many tiles a CTA."""
    d, causal, window = spec.head_dim, spec.mask == "causal", 37 if spec.mask == "window" else None

    def shape(*sizes: int) -> Shape:
        return Shape(*sizes, d, window)

    yield Problem(shape(2, 4, 2, 333, 410), causal)
    yield Problem(shape(1, 2, 1, 500, 200), causal, with_lse=False)
    yield Problem(shape(3, 2, 2, 1, 777), causal)
    yield Problem(shape(1, 2, 1, 300, 400), causal, magnitude=30.0)
    yield Problem(shape(2, 16, 4, 1000, 1111), causal, Sm90Order("query", "light_first"))
    yield Problem(shape(4, 32, 8, 640, 640), causal, Sm90Order("head", "heavy_first", 8, "descending"))
    yield Problem(shape(2, 16, 16, 1024, 1024), causal, Sm90Order("head", "fold", 3, "alternating"))
    yield Problem(shape(2, 8, 2, 777, 900), causal, shuffled=True)
    yield Problem(shape(5, 4, 2, 700, 900), causal, lengths=((5, 300, 700, 129, 1), (900, 300, 64, 33, 640)))
    yield Problem(shape(3, 16, 4, 512, 512), causal, Sm90Order("query"), lengths=((512, 100, 257), (512, 100, 257)))


def kept(rows: int, keys: int, causal: bool, window: int | None) -> torch.Tensor | None:
    if not causal and window is None:
        return None
    back = torch.arange(rows, device="cuda")[:, None] + (keys - rows) - torch.arange(keys, device="cuda")[None, :]
    return (back >= 0) if window is None else (back >= 0) & (back <= window)


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE of [heads, rows, head_dim] in float64."""
    group = q.shape[0] // k.shape[0]
    q, k, v = q.double(), k.double().repeat_interleave(group, 0), v.double().repeat_interleave(group, 0)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    mask = kept(q.shape[1], k.shape[1], causal, window)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    lse = torch.logsumexp(scores, -1)
    return torch.exp(scores - lse.clamp_min(-1e300)[..., None]) @ v, lse


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    error = (torch.linalg.norm(got.double() - want) / torch.linalg.norm(want).clamp_min(1e-30)).item()
    return error if math.isfinite(error) else math.inf


def check(kernel: Sm90Forward, problem: Problem, seed: int) -> tuple[bool, float, float]:
    """Whether one call agrees with float64, its relative error and the LSE's largest absolute one."""
    s, spec = problem.shape, kernel.spec
    g = torch.Generator("cuda").manual_seed(seed)
    lengths = problem.lengths or ((s.seq_q,) * s.batch, (s.seq_k,) * s.batch)

    def normal(heads: int, rows: tuple[int, ...]) -> torch.Tensor:  # [all rows, heads, head_dim]
        x = torch.randn((sum(rows), heads, s.head_dim), generator=g, device="cuda") * problem.magnitude
        return x.to(TORCH_DTYPES[spec.dtype])

    packed = {"q": normal(s.heads, lengths[0]), "k": normal(s.kv_heads, lengths[1]), "v": normal(s.kv_heads, lengths[1])}
    bounds = [torch.tensor([0, *itertools.accumulate(x)], dtype=torch.int32, device="cuda") for x in lengths]
    ragged = None
    if problem.lengths is None:
        t = {name: x.view(s.batch, -1, x.shape[1], s.head_dim).transpose(1, 2).contiguous() for name, x in packed.items()}
        lse = torch.full((s.batch, s.heads, s.seq_q), math.nan, device="cuda")
    else:
        t = packed
        ragged = Ragged(s.seq_q, s.seq_k, sum(lengths[0]), sum(lengths[1]), bounds[0].data_ptr(), bounds[1].data_ptr())
        lse = torch.full((s.heads, sum(lengths[0])), math.nan, device="cuda")
    o = torch.full_like(t["q"], math.nan)
    addresses = {name: x.data_ptr() for name, x in (t | {"o": o}).items()}
    if problem.with_lse:
        addresses["lse"] = lse.data_ptr()
    blocks = -(-s.seq_q // (spec.block_q * spec.cluster)) * s.all_heads
    remap = torch.randperm(blocks, generator=g, device="cuda").int() if problem.shuffled else None
    launch = kernel.launch(s, addresses, problem.order, ragged=ragged, remap=None if remap is None else remap.data_ptr())
    launch.run()
    torch.cuda.synchronize()
    error = lse_error = 0.0
    good = True
    for n in range(s.batch):
        rows, keys = (slice(int(b[n]), int(b[n + 1])) for b in bounds)
        q, k, v = packed["q"][rows], packed["k"][keys], packed["v"][keys]
        want, want_lse = reference(*(x.transpose(0, 1) for x in (q, k, v)), problem.causal, s.window)
        got = o[n] if ragged is None else o[rows].transpose(0, 1)
        empty = want_lse == -math.inf
        good &= bool((got[empty] == 0).all())
        if not bool(empty.all()):
            error = max(error, relative(got, want))
        if problem.with_lse:
            got_lse = (lse[n] if ragged is None else lse[:, rows]).double()
            good &= bool((got_lse[empty] == -math.inf).all())
            if not bool(empty.all()):
                difference = (got_lse - want_lse)[~empty].abs().max().item()
                lse_error = max(lse_error, difference if math.isfinite(difference) else math.inf)
    loose = problem.magnitude > 1
    good &= error <= TOLERANCE[spec.dtype] and lse_error <= LSE_TOLERANCE * (50 if loose else 1)
    return good, error, lse_error


def flops(s: Shape, causal: bool) -> float:
    """Multiply-adds counted twice, over the kept pairs of sequences of equal length."""
    pairs = s.seq_q * s.seq_k if not causal else s.seq_q * (s.seq_q + 1) // 2
    return 4.0 * s.all_heads * pairs * s.head_dim


def tensors(s: Shape, dtype: str) -> dict[str, torch.Tensor]:
    g = torch.Generator("cuda").manual_seed(7)

    def normal(heads: int, seq: int) -> torch.Tensor:
        return torch.randn((s.batch, heads, seq, s.head_dim), generator=g, device="cuda").to(TORCH_DTYPES[dtype])

    t = {"q": normal(s.heads, s.seq_q), "k": normal(s.kv_heads, s.seq_k), "v": normal(s.kv_heads, s.seq_k)}
    return t | {"o": torch.empty_like(t["q"])}


def own_call(spec: Sm90Spec, s: Shape, t: dict[str, torch.Tensor], order: Sm90Order) -> Callable[[], None]:
    launch = Sm90Forward(spec).launch(s, {name: x.data_ptr() for name, x in t.items()}, order)
    stream = torch.cuda.current_stream().cuda_stream
    return lambda: launch.run(stream)


def library_calls(s: Shape, causal: bool, t: dict[str, torch.Tensor]) -> Iterator[tuple[str, Callable[[], object]]]:
    """PyTorch's backends on the same problem, which get grouped keys repeated where they refuse them grouped."""
    group = s.heads // s.kv_heads
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("pytorch_flash", SDPBackend.FLASH_ATTENTION)):
        with sdpa_kernel(backend):
            call = partial(scaled_dot_product_attention, t["q"], t["k"], t["v"], is_causal=causal, enable_gqa=group > 1)
            try:
                call()
            except RuntimeError:
                k, v = (t[x].repeat_interleave(group, dim=1) for x in "kv")
                call = partial(scaled_dot_product_attention, t["q"], k, v, is_causal=causal)
            yield name, call


def prebuild(specs: list[Sm90Spec]) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda spec: build(spec, "9.0a"), dict.fromkeys(specs)))


def guarded(items: int, out: Path | None = None) -> int:
    """Runs this script's worker over the items, a new one where one hangs or dies, and writes the rows that it hands over.

    Returns:
        0 where every item came to its end and no line said WRONG.
    """
    start = lost = wrong = 0
    rows: list[str] = []
    while start < items and lost < MOST_LOST:
        worker = subprocess.Popen([sys.executable, "-u", *sys.argv, "--worker", str(start)], stdout=subprocess.PIPE)
        assert worker.stdout is not None
        rest = b""
        while True:
            if not select.select([worker.stdout], [], [], SILENT_S)[0]:
                worker.kill()
            chunk = os.read(worker.stdout.fileno(), 1 << 16)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in (x.decode() for x in lines):
                if line.startswith("ITEM "):
                    start = int(line.split()[1]) + 1
                elif line.startswith("ROW "):
                    rows.append(line.removeprefix("ROW "))
                else:
                    wrong += line.startswith("WRONG")
                    print(line, flush=True)
        if worker.wait() == 0:
            break
        lost += 1
        print(f"LOST item {start - 1}, code {worker.returncode}", flush=True)
    if out is not None and not lost:
        write_whole(out, "\n".join([",".join(COLUMNS), *rows]) + "\n")
        write_provenance(out, facts() | {"command": " ".join(["python", *sys.argv]), **NOTES})
    return 1 if lost or wrong else 0


def run_check(specs: list[Sm90Spec], first: int, quick: bool) -> int:
    seed, wrong, worst = int.from_bytes(os.urandom(3), "little"), 0, {}
    for i, spec in enumerate(specs):
        if i < first:
            continue
        print("ITEM", i, flush=True)
        kernel, bad = Sm90Forward(spec), []
        for n, problem in enumerate(small(spec)):
            if quick and problem.shape.all_heads * problem.shape.seq_q > 15_000:
                continue
            try:
                good, error, lse_error = check(kernel, problem, seed + 100 * i + n)
            except RuntimeError:
                print(f"FAILED {problem} {spec}", flush=True)
                raise
            old = worst.get(spec.dtype, (0.0, 0.0))
            worst[spec.dtype] = (max(old[0], error), max(old[1], lse_error))
            if not good:
                bad.append(f"{n}: {error:.1e} {lse_error:.1e}")
        if bad:
            wrong += 1
            print(f"WRONG {spec}: {'; '.join(bad)}", flush=True)
    print(f"{len(specs) - first} instantiations, {wrong} wrong; largest errors (o, lse): {worst}")
    return 0


def candidates(head_dim: int) -> list[Sm90Spec]:
    """Instantiations that may be fastest, without a mask."""
    best, specs = BASE[head_dim], []
    for pipeline, turns in itertools.product(PIPELINES, TURNS):
        if pipeline == "eager" or turns == "free":
            specs.append(replace(best, pipeline=pipeline, turns=turns))
    small_k = replace(best, block_k=64) if head_dim == 256 else best
    specs += [replace(small_k, cluster=2, schedule=s, pipeline=p, turns="free") for s in SCHEDULES for p in ("eager", "overlapped")]
    if head_dim == 64:
        for pipeline, turns, stages in itertools.product(("sequential", "eager", "overlapped"), ("free", "products"), (2, 4)):
            specs.append(replace(best, stages=stages, pipeline=pipeline, turns=turns))
            specs.append(replace(best, consumers=4, block_k=64, stages=stages, pipeline=pipeline, turns=turns))
            if stages == 2:
                specs += [replace(best, pipeline=pipeline, turns=turns, poly=p) for p in (1, 2)]
        specs += [replace(best, consumers=2, block_k=k, pipeline="eager", turns="free") for k in (128, 160)]
    if head_dim == 128:
        for pipeline, turns in itertools.product(("sequential", "eager"), ("free", "products")):
            specs += [replace(best, consumers=3, block_k=k, q_stages=1, pipeline=pipeline, turns=turns) for k in (64, 80)]
            specs.append(replace(best, block_k=176, q_stages=1, pipeline=pipeline, turns=turns))
            specs.append(replace(best, block_k=96, stages=3, pipeline=pipeline, turns=turns))
    if head_dim == 256:
        for pipeline, turns in itertools.product(("sequential", "eager", "overlapped"), ("free", "products")):
            specs.append(replace(best, block_k=64, pipeline=pipeline, turns=turns))
            specs.append(replace(best, pipeline=pipeline, turns=turns))
    return list(dict.fromkeys(specs))


SWEEP_SHAPES = {d: tuple(Shape(1, n, n, seq, seq, d) for n, seq in sizes) for d, sizes in {
    64: ((64, 2048), (32, 4096), (8, 16384)),
    128: ((64, 2048), (32, 4096), (8, 16384)),
    256: ((32, 2048), (16, 4096), (4, 16384)),
}.items()}  # fmt: skip


def timed_shapes(head_dim: int) -> Iterator[tuple[Shape, str]]:
    """Shapes and types of the table of speeds."""
    heads = 4096 // head_dim
    for seq in (2048, 4096, 8192, 16384, 32768):
        n = max(heads * 2048 // seq, 2)
        yield Shape(1, n, n, seq, seq, head_dim), "bf16"
    yield Shape(1, heads // 2, heads // 2, 4096, 4096, head_dim), "fp16"
    for seq in (4096, 16384):
        yield Shape(1, heads // 2, heads // 8, seq, seq, head_dim), "bf16"


def default_order(causal: bool) -> Sm90Order:
    return Sm90Order("head", "heavy_first") if causal else Sm90Order("query", "light_first")


def sustained(call: Callable[[], object], ms: float) -> tuple[float, str]:
    """Milliseconds of a call in a row of them that lasts a second, and the SM clock (MHz) that nvidia-smi says meanwhile."""
    calls = max(int(500 / ms), 2)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
    for _ in range(calls):
        call()
    events[0].record()
    for _ in range(calls):
        call()
    events[1].record()
    time.sleep(0.4)
    query = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
    clock = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1]) / calls, clock


def row(name: str, s: Shape, causal: bool, dtype: str, ms: float, spec: Sm90Spec | None = None, clock: str = "") -> None:
    """Hands a row of the table to the parent."""
    order = default_order(causal)
    knobs = [""] * len(KNOBS) if spec is None else [getattr(spec, knob) for knob in KNOBS]
    orders = ["", ""] if spec is None else [order.order, order.blocks]
    problem = [name, s.batch, s.heads, s.kv_heads, s.seq_q, s.seq_k, s.head_dim, int(causal), dtype]
    regime = [f"{ms:.4f}", f"{flops(s, causal) / ms / 1e9:.1f}", "sustained" if clock else "burst", clock]
    print("ROW", ",".join(map(str, [*problem, *knobs, *orders, *regime])), flush=True)


def run_time(problems: list[tuple[Shape, str, bool]], first: int) -> int:
    """The fastest instantiation beside PyTorch's backends, in bursts, and sustained at 16,384 tokens."""
    for i, (s, dtype, causal) in enumerate(problems):
        if i < first:
            continue
        print("ITEM", i, flush=True)
        t, spec = tensors(s, dtype), fastest(s.head_dim, "causal" if causal else "none", dtype)
        calls = [("flash_fwd_sm90", own_call(spec, s, t, default_order(causal))), *library_calls(s, causal, t)]
        said = []
        for name, call in calls:
            backend = {"cudnn": SDPBackend.CUDNN_ATTENTION, "pytorch_flash": SDPBackend.FLASH_ATTENTION}.get(name, SDPBackend.MATH)
            own = spec if name == "flash_fwd_sm90" else None
            with sdpa_kernel(backend):
                ms = median_ms(call, False)
                row(name, s, causal, dtype, ms, own)
                said.append(f"{name} {flops(s, causal) / ms / 1e9:.1f}")
                if s.seq_q == 16384 and s.heads == s.kv_heads:
                    long_ms, clock = sustained(call, ms)
                    row(name, s, causal, dtype, long_ms, own, clock)
                    said.append(f"({flops(s, causal) / long_ms / 1e9:.1f} at {clock} MHz)")
        print(s.head_dim, f"{s.heads}/{s.kv_heads} x {s.seq_q}", "causal" if causal else "full", dtype, *said, flush=True)
    return 0


def run_sweep(specs: list[Sm90Spec], first: int) -> int:
    """A row for each problem of each instantiation."""
    for i, spec in enumerate(specs):
        if i < first:
            continue
        print("ITEM", i, flush=True)
        rates = []
        for s, causal in itertools.product(SWEEP_SHAPES[spec.head_dim], (False, True)):
            t, masked = tensors(s, spec.dtype), replace(spec, mask="causal" if causal else "none")
            ms = median_ms(own_call(masked, s, t, default_order(causal)), False)
            row("flash_fwd_sm90", s, causal, spec.dtype, ms, masked)
            rates.append(f"{flops(s, causal) / ms / 1e9:6.1f}")
        print(spec.head_dim, *rates, *(getattr(spec, knob) for knob in KNOBS), flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("check", "sweep", "time"))
    parser.add_argument("--quick", action="store_true", help="check a part, small problems only")
    parser.add_argument("--head-dim", type=int, nargs="+", default=list(BASE), choices=tuple(BASE))
    parser.add_argument("--out", type=Path, help="CSV to write (sweep, time)")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.what == "check":
        specs = [spec for spec in knobs() if spec.head_dim in a.head_dim][:: 13 if a.quick else 1]
        if a.worker is not None:
            return run_check(specs, a.worker, a.quick)
        prebuild(specs)
        return guarded(len(specs))
    if a.what == "sweep":
        specs = [spec for d in a.head_dim for spec in candidates(d)]
        if a.worker is not None:
            return run_sweep(specs, a.worker)
        prebuild([replace(spec, mask=mask) for spec in specs for mask in ("none", "causal")])
        return guarded(len(specs), a.out)
    problems = [(s, dtype, causal) for d in a.head_dim for s, dtype in timed_shapes(d) for causal in (False, True)]
    if a.worker is not None:
        return run_time(problems, a.worker)
    prebuild([fastest(s.head_dim, "causal" if causal else "none", dtype) for s, dtype, causal in problems])
    return guarded(len(problems), a.out)


if __name__ == "__main__":
    sys.exit(main())
