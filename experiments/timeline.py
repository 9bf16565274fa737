"""When and where the CTAs of flash_fwd really run: `python experiments/timeline.py --out h200_iosim_timeline.csv`.

Builds flash_fwd with two additions, the global timer and the SM's number at the start and at the end of every CTA, runs
it on problems where CTAs that share an SM all have the same work, and writes per case how far the older and the younger
CTA of an SM lie apart, how far SMs do, and in which order SMs get CTAs. A second kernel times atomics from every SM to
lines far apart: SMs that are near the same lines are on one side of the L2. Nothing is profiled.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiment import compiled, run_script, write_provenance

from iosim import InputError
from iosim.base.data import data_dir
from iosim.base.files import write_whole
from iosim.evidence.cuda import driver
from iosim.evidence.cuda.compiler import Built, source_files
from iosim.evidence.cuda.launch import Forward, Order, Shape
from iosim.evidence.cuda.spec import FwdSpec

SOURCES = data_dir("kernels")
TILES = 4096
TILE = {"head_dim": 128, "block_q": 128, "block_k": 64, "warps": 4, "stages": 2}
CASES = (
    ("none", 4, 65536, Order("head")),
    ("none", 4, 65536, Order("query")),
    ("none", 1, 131072, Order("query")),
    ("causal", 8, 65536, Order("head", heavy_first=True)),
    ("causal", 8, 32768, Order("head", heavy_first=True)),
)
MARK_START = """  if (threadIdx.x == 0) {
    unsigned long long now; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); timeline_begin[blockIdx.x] = now;
    unsigned sm; asm volatile("mov.u32 %0, %smid;" : "=r"(sm)); timeline_sm[blockIdx.x] = sm;
  }
"""
MARK_END = """  if (threadIdx.x == 0) {
    unsigned long long now; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); timeline_end[blockIdx.x] = now;
  }
"""
EVERY = 64
MARKS = 32
MARK_STEP = f"""    if (t % {EVERY} == 0 && threadIdx.x == 0) {{
      unsigned long long now; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
      timeline_steps[(size_t)blockIdx.x * {MARKS} + t / {EVERY}] = now;
    }}
"""
STORE = f"""}}
extern "C" {{
__device__ unsigned long long timeline_begin[{TILES}], timeline_end[{TILES}];
__device__ unsigned timeline_sm[{TILES}];
__device__ unsigned long long timeline_steps[{TILES} * {MARKS}];
}}
namespace flash {{
"""
SIDES = """
extern "C" __global__ void sides(unsigned* lines, unsigned stride, unsigned n, unsigned* took, unsigned* sm_of) {
  extern __shared__ char hold[];
  if (threadIdx.x) return;
  unsigned sm;
  asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
  sm_of[blockIdx.x] = sm;
  for (unsigned i = 0; i < n; ++i) {
    unsigned best = ~0u;
    for (int turn = 0; turn < 8; ++turn) {
      unsigned a, b, x;
      asm volatile("mov.u32 %0, %clock; atom.global.add.u32 %1, [%3], 1; st.shared.u32 [%4], %1; mov.u32 %2, %clock;"
                   : "=r"(a), "=r"(x), "=r"(b) : "l"(lines + (size_t)i * stride), "r"(0) : "memory");
      best = b - a < best ? b - a : best;
    }
    took[(size_t)sm * n + i] = best;
  }
}
"""


STEP_CASES = {
    "heads fastest": ("none", 4, 65536, Order("head")),
    "heads fastest, alternating": ("none", 4, 65536, Order("head", direction="alternating")),
    "queries fastest": ("none", 4, 65536, Order("query")),
    "causal, heads fastest, heavy first": ("causal", 8, 65536, Order("head", heavy_first=True)),
    "causal, queries fastest, descending": (
        "causal",
        8,
        65536,
        Order("query", direction="descending"),
    ),
}
LOOP = '  _Pragma("unroll 1") for (int t = 0; t < walk.count; ++t) {\n'


def marked_source(folder: Path, steps: bool = False) -> Path:
    """flash_fwd's sources with marks at starts and ends of CTAs, and in the loop where `steps` are asked for."""
    text = (SOURCES / "flash_fwd.cuh").read_text(encoding="utf-8")
    for old, new in (
        ("struct FwdParams {", STORE + "struct FwdParams {"),
        ("  plan<T>(p, w, walk);\n", "  plan<T>(p, w, walk);\n" + MARK_START),
        (
            "  finish<T>(rows, p, walk, shared);\n",
            "  finish<T>(rows, p, walk, shared);\n" + MARK_END,
        ),
        (LOOP, LOOP + MARK_STEP * steps),
    ):
        if text.count(old) != 1:
            raise InputError(
                f"flash_fwd.cuh has {text.count(old)} lines '{old.strip()}'; the marks need one"
            )
        text = text.replace(old, new)
    (folder / "flash_fwd.cuh").write_text(text, encoding="utf-8")
    for source in source_files("flash_fwd.cu"):
        if source.name != "flash_fwd.cuh":
            (folder / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    return folder / "flash_fwd.cu"


def from_device(module: ctypes.c_void_p, name: str, dtype: Any) -> np.ndarray[Any, Any]:
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    driver.call(
        "cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), module, name.encode()
    )
    array = np.empty(size.value // np.dtype(dtype).itemsize, dtype=dtype)
    driver.call("cuMemcpyDtoH_v2", array.ctypes.data_as(ctypes.c_void_p), address, size)
    return array


def sides_of_sms(folder: Path, sms: int) -> np.ndarray[Any, Any]:
    """Side of the L2 of each SM, by its number: the sign of the first pattern in the atomics' latencies."""
    import torch

    source = folder / "sides.cu"
    source.write_text(SIDES, encoding="utf-8")
    shared = 200 * 1024
    n = 96
    stride = (1 << 18) + 17 * 256
    function = driver.Function(compiled(source, folder / "sides.cubin", {}), "sides", shared)
    lines = torch.zeros(n * stride + 16, device="cuda", dtype=torch.int32)
    took = torch.zeros(sms * n, device="cuda", dtype=torch.int32)
    order = torch.zeros(sms, device="cuda", dtype=torch.int32)
    values = [
        ctypes.c_void_p(lines.data_ptr()),
        ctypes.c_uint32(stride),
        ctypes.c_uint32(n),
        ctypes.c_void_p(took.data_ptr()),
        ctypes.c_void_p(order.data_ptr()),
    ]
    pointers = (ctypes.c_void_p * len(values))(
        *[ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values]
    )
    for _ in range(2):
        driver.call(
            "cuLaunchKernel", function._handle, sms, 1, 1, 32, 1, 1, shared, None, pointers, None
        )
        torch.cuda.synchronize()
    latency = took.cpu().numpy().reshape(sms, n).astype(np.float64)
    latency -= np.median(latency, axis=1, keepdims=True)
    pattern = np.linalg.svd(latency - latency.mean(axis=0), full_matrices=False)[0][:, 0]
    return (pattern > 0).astype(int)


def runs(sides: np.ndarray[Any, Any]) -> str:
    """Lengths of the runs of equal sides, such as `16+48+50+18`."""
    edges = np.flatnonzero(np.diff(sides)) + 1
    return "+".join(str(n) for n in np.diff([0, *edges, sides.size]))


def run(mask: str, heads: int, tokens: int, order: Order, forward: Forward) -> None:
    """One launch, the L2 flushed before it."""
    import torch

    d = TILE["head_dim"]
    q, k, v, o = (
        torch.randn(1, heads, tokens, d, device="cuda", dtype=torch.bfloat16) for _ in "qkvo"
    )
    lse = torch.empty(heads, tokens, device="cuda")
    addresses = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
    shape = Shape(1, heads, heads, tokens, tokens, d)
    launch = forward.launches(shape, {n: t.data_ptr() for n, t in addresses.items()}, order)[0]
    torch.empty(1 << 28, device="cuda", dtype=torch.uint8).zero_()
    torch.cuda.synchronize()
    launch.run()
    torch.cuda.synchronize()


def built(mask: str, source: Path) -> Forward:
    spec = FwdSpec(mask=mask, dtype="bf16", min_ctas=2, **TILE)
    cubin = compiled(source, source.parent / f"{mask}.cubin", spec.defines())
    return Forward(spec, Built(cubin, driver.compute_capability(), "", {}))


def record_steps(path: Path, folder: Path, side: np.ndarray[Any, Any]) -> None:
    """Times of every CTA of STEP_CASES, in microseconds from the first: every 64th step, and the end."""
    source, arrays = marked_source(folder, steps=True), {}
    kernels = {mask: built(mask, source) for mask in ("none", "causal")}
    for name, (mask, heads, tokens, order) in STEP_CASES.items():
        forward = kernels[mask]
        run(mask, heads, tokens, order, forward)
        tiles = tokens // TILE["block_q"] * heads
        at = (
            from_device(forward.main._module, "timeline_steps", np.uint64)
            .reshape(TILES, MARKS)[:tiles]
            .astype(np.int64)
        )
        end = from_device(forward.main._module, "timeline_end", np.uint64)[:tiles].astype(np.int64)
        zero = at[:, 0].min()
        arrays[f"{name}: at"] = np.clip((at - zero) // 100, 0, 2**31 - 1).astype(
            np.int32
        )  # tenths of a microsecond
        arrays[f"{name}: end"] = ((end - zero) // 100).astype(np.int32)
        sm = from_device(forward.main._module, "timeline_sm", np.uint32)[:tiles].astype(int)
        arrays[f"{name}: side"] = side[sm].astype(np.uint8)
    np.savez_compressed(path, **arrays)


def measure(
    mask: str, heads: int, tokens: int, order: Order, forward: Forward, side: np.ndarray[Any, Any]
) -> dict[str, Any]:
    """One case."""
    run(mask, heads, tokens, order, forward)
    tiles = tokens // TILE["block_q"] * heads
    begin, end = (
        from_device(forward.main._module, f"timeline_{n}", np.uint64)[:tiles].astype(np.float64)
        for n in ("begin", "end")
    )
    sm = from_device(forward.main._module, "timeline_sm", np.uint32)[:tiles].astype(int)
    took, sms = end - begin, side.size
    first = np.arange(2 * sms)
    steps = np.full(tiles, tokens / TILE["block_k"])
    if mask == "causal":
        block = tokens // TILE["block_q"] - 1 - np.arange(tiles) // heads
        steps = (block + 1) * TILE["block_q"] / TILE["block_k"]
    pairs = np.array([first[sm[first] == n] for n in range(sms)])
    older = pairs.min(axis=1)
    younger = pairs.max(axis=1)
    # while the older runs, the younger does (1 - b/2) / (1 + b/2) of its steps; then it is the oldest itself
    ratio = (
        (took[younger] - took[older]) / (took[older] / steps[older])
        - (steps[younger] - steps[older])
    ) / steps[older]
    pace = (took[older] + took[younger]) / (
        steps[older] + steps[younger]
    )  # an SM's first two CTAs, while all SMs have two
    return {
        "mask": mask,
        "heads": heads,
        "seq": tokens,
        "order": order.order,
        "heavy_first": int(order.heavy_first),
        "ctas": tiles,
        "milliseconds": round((end.max() - begin.min()) / 1e6, 3),
        "older_us": round(took[older].mean() / 1e3, 2),
        "younger_us": round(took[younger].mean() / 1e3, 2),
        "age_share": round(float(np.median(ratio / (1 - ratio / 2))), 4),
        "sm_pace_low": round(pace.min() / pace.mean(), 5),
        "sm_pace_high": round(pace.max() / pace.mean(), 5),
        "sm_pace_std": round(pace.std() / pace.mean(), 5),
        "side_runs": runs(side[sm[:sms]]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="CSV to write; its provenance goes beside it"
    )
    parser.add_argument(
        "--steps", action="store_true", help="times of every 64th step instead, as NPZ"
    )
    options = parser.parse_args()
    out: Path = options.out
    driver.use_device()
    sms = driver.multiprocessors()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        side = sides_of_sms(folder, sms)
        if options.steps:
            record_steps(out, folder, side)
        else:
            source, rows = marked_source(folder), []
            for mask in ("none", "causal"):
                forward = built(mask, source)
                rows += [
                    measure(*case, forward, side)
                    for case in CASES
                    if case[0] == mask
                    for _ in range(2)
                ]
            write_whole(out, pd.DataFrame(rows).to_csv(index=False))
    write_provenance(
        out,
        f"python experiments/timeline.py{' --steps' * options.steps} --out {out.name}",
        l2_start="256 MB written before every case",
        profiler="the kernel marks its own times",
        side_of_each_sm="".join(map(str, side)),
    )


if __name__ == "__main__":
    run_script(main)
