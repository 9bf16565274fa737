"""What ways of timing add to kernels, and what kernels take whose lengths fill their blocks or not:
`python experiments/timers.py FILE.csv 85`, on a GPU with PyTorch, for at most so many seconds.

A row with `way` trace is a kernel of a call, by the driver's trace behind a write over 256 MiB; `span` is from its first
kernel's begin to its last one's end. Others are of the whole call: between events, behind a kernel that spins and the
write (`events`); without the spinning one, as Triton's do_bench has it (`do_bench`); one call behind the other (`loop`).
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

Call = Callable[[], Any]
HEAD = ("section", "case", "way", "position", "kernel", "seconds", "least", "repeats")
MARK = "bitwise_not"
"""What the kernel of the write is called, and no kernel of a call."""
RUNTIME = ("cuda", "aten", "autograd")


class Timers:
    """The table, and the ways of timing that fill it."""

    def __init__(self, table: Any, limit_s: float) -> None:
        self.table, self.end = table, time.monotonic() + limit_s
        self.buffer = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
        table.writerow(HEAD)

    def row(self, *cells: Any, seconds: list[float]) -> None:
        middle, least = statistics.median(seconds), min(seconds)
        self.table.writerow([*cells, f"{middle:.9f}", f"{least:.9f}", len(seconds)])

    def flush(self) -> None:
        self.buffer.bitwise_not_()

    def traced(self, section: str, case: str, call: Call, repeats: int) -> None:
        for _ in range(2):
            self.flush()
            call()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as prof:
            for _ in range(repeats):
                self.flush()
                call()
            torch.cuda.synchronize()
        kernels = [
            e for e in prof.profiler.kineto_results.events() if "CUDA" in str(e.device_type())
        ]
        calls: list[list[Any]] = []
        for e in sorted(kernels, key=lambda e: e.start_ns()):
            if MARK in e.name():
                calls.append([])
            elif calls and not e.name().startswith(RUNTIME):
                calls[-1].append(e)
        size = statistics.mode([len(c) for c in calls if c])
        calls = [c for c in calls if len(c) == size]
        for n, kernel in enumerate(calls[0]):
            durations = [c[n].duration_ns() * 1e-9 for c in calls]
            self.row(section, case, "trace", n, kernel.name()[:300], seconds=durations)
        spans = [(c[-1].start_ns() + c[-1].duration_ns() - c[0].start_ns()) * 1e-9 for c in calls]
        self.row(section, case, "span", -1, f"{size} kernels", seconds=spans)

    def events(self, calls: Iterable[Call]) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for call in calls:
            call()
        last.record()
        return first, last

    def timed(self, section: str, case: str, call: Call, repeats: int, loops: int) -> None:
        for way, spin in (("events", True), ("do_bench", False)):
            pairs = []
            for _ in range(repeats):
                if spin:
                    torch.cuda._sleep(1_500_000)
                self.flush()
                pairs.append(self.events([call]))
                if spin:
                    torch.cuda.synchronize()
            torch.cuda.synchronize()
            seconds = [first.elapsed_time(last) * 1e-3 for first, last in pairs]
            self.row(section, case, way, -1, "", seconds=seconds)
        torch.cuda._sleep(3_000_000)
        first, last = self.events([call] * loops)
        torch.cuda.synchronize()
        self.row(section, case, "loop", -1, "", seconds=[first.elapsed_time(last) * 1e-3 / loops])

    def case(self, section: str, case: str, call: Call, ways: bool = True, loops: int = 20) -> None:
        if time.monotonic() > self.end:
            return
        try:
            self.traced(section, case, call, 9 if ways else 7)
            if ways:
                self.timed(section, case, call, 9, loops)
        except RuntimeError:
            traceback.print_exc()
            torch.cuda.synchronize()


def grown(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, device="cuda")


def adds(timers: Timers) -> None:
    """A gradient added to one that lies as it does, or whose heads lie between its rows."""
    timers.case("null", "one value", partial(torch.zeros(1, device="cuda").add_, 1))
    for width, lengths in ((64, (128, 512, 1024, 2048, 4096)), (128, (128, 1024, 2048, 4096))):
        for n in lengths:
            leaf = grown(4, 48, n, width)
            other = grown(4, n, 48, width).transpose(1, 2)
            timers.case("add-strided", f"4x48x{n}x{width}", partial(leaf.add_, other), loops=5)
            timers.case("add", f"4x48x{n}x{width}", partial(leaf.add_, leaf.clone()), loops=5)


def decode(timers: Timers) -> None:
    """Packed sequences of one query token and few keys."""
    flash = torch.ops.aten._flash_attention_forward
    for keys in (32, 64, 128, 256, 512, 1024):
        q = grown(64, 64, 128, dtype=torch.float16)
        k, v = (grown(64 * keys, 8, 128, dtype=torch.float16) for _ in range(2))
        starts = torch.arange(65, dtype=torch.int32, device="cuda")
        ends = starts, starts * keys
        call = partial(flash, q, k, v, *ends, 1, keys, 0.0, False, False, scale=0.088)
        timers.case("decode-varlen", f"64x64/8 keys {keys}", call)


def backward(timers: Timers) -> None:
    """FlashAttention-2's backward over whole blocks and over others."""
    for width in (32, 64, 96, 128, 192, 256):
        for causal in (False, True):
            for n in (2000, 2048, 4000, 4096)[: 4 if width <= 128 else 2]:
                inputs = [grown(2, 16, n, width).requires_grad_() for _ in range(3)]
                with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                    o = F.scaled_dot_product_attention(*inputs, is_causal=causal)
                call = partial(
                    torch.autograd.grad, o, inputs, torch.randn_like(o), retain_graph=True
                )
                case = f"2x16x{n}x{width} causal {int(causal)}"
                timers.case("flash-backward", case, call, ways=False)


def efficient(timers: Timers) -> None:
    """The memory-efficient backward over 197 tokens, queries, keys and values out of one tensor, whose gradient it adds
    to the one before."""
    shapes = ((1024, 1), (64, 80, 88)), ((384, 1), (80, 88)), ((32, 16), (64, 80, 128))
    for (batch, heads), widths in shapes:
        for width in widths:
            qkv = grown(batch, 197, 3, heads, width, dtype=torch.float16).requires_grad_()
            q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
                o = F.scaled_dot_product_attention(q, k, v)
            call = partial(o.backward, torch.ones_like(o), retain_graph=True)
            timers.case("efficient-backward", f"{batch}-197-{heads}-{width}", call)


def main() -> None:
    path = sys.argv[1]
    limit_s = float(sys.argv[2])
    with open(path, "w", newline="", encoding="utf-8") as file:
        timers = Timers(csv.writer(file), limit_s)
        for section in (adds, decode, backward, efficient):
            section(timers)


if __name__ == "__main__":
    main()
