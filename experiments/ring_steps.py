"""What the steps of a ring of eight cost beside their attention, played on two GPUs of one host:
`torchrun --nproc-per-node 2 experiments/ring_steps.py --out FILE.csv`

Each step sends keys and values to the neighbour and takes the neighbour's, attends to what it has, and merges the result
into an fp32 sum, as ring attention in PyTorch does; two GPUs play as many steps as a larger ring has. The steps are those
of the busiest GPU of a causal ring (every step after the first reads all keys), of a zigzag ring whose later half of
queries meets all keys, or whose queries meet the earlier half of the keys. With `backward`, gradients of K and V go
round in fp32 as well.

A row is one loop: a case, what it leaves out, and milliseconds an iteration on the slowest GPU by CUDA events.
`leaves_out` is nothing; `exchange` (no messages); `attention` (messages and merges alone); `merge`; `priority` leaves
nothing out and gives NCCL's stream a high priority; `host_ms` is what the processor takes to launch an iteration, read
before it waits for the GPU. `--check` plays a small ring on CPUs with gloo and compares it with attention on one device.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

COLUMNS = ("case", "passes", "tokens", "heads", "kv_heads", "steps", "leaves_out", "ms", "host_ms")
HEAD_DIM = 128
CASES = (
    # case, tokens of a GPU, query heads, key heads, steps
    ("late", 8192, 5, 5, 8),
    ("early", 8192, 5, 5, 8),
    ("full", 8192, 5, 5, 8),
    ("late", 8192, 32, 8, 8),
    ("early", 8192, 32, 8, 8),
    ("full", 8192, 32, 8, 8),
    ("early", 4096, 16, 16, 4),
    ("early", 1024, 5, 5, 8),
)
LEFT_OUT = ("nothing", "exchange", "attention", "merge")
LOOPS, WARM_UPS = 30, 8
Tensor = Any


class Messages:
    """Messages to the next GPU and from the one before, two tensors at a time; none where `silent`."""

    def __init__(self, group: Any, silent: bool) -> None:
        self.group, self.silent, self.requests = group, silent, []

    def start(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Sends the tensors and returns those that will have arrived after `wait`."""
        if self.silent:
            return tensors
        rank, world = dist.get_rank(), dist.get_world_size()
        arriving = tuple(torch.empty_like(tensor) for tensor in tensors)
        operations = []
        for out, into in zip(tensors, arriving, strict=True):
            operations.append(dist.P2POp(dist.isend, out, (rank + 1) % world, self.group))
            operations.append(dist.P2POp(dist.irecv, into, (rank - 1) % world, self.group))
        self.requests = dist.batch_isend_irecv(operations)
        return arriving

    def wait(self) -> None:
        for request in self.requests:
            request.wait()
        self.requests = []


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """(output, log-sum-exp as [batch, heads, tokens]) of [batch, tokens, heads, head_dim]."""
    if q.is_cuda:
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            q, k, v, None, None, q.shape[1], k.shape[1], 0.0, causal, False
        )
        return out, lse
    group = q.shape[2] // k.shape[2]
    k, v = (tensor.repeat_interleave(group, dim=2) for tensor in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[3] ** 0.5
    if causal:
        scores = scores.masked_fill(
            torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf")
        )
    lse = scores.logsumexp(dim=3)
    return torch.einsum("bhqk,bkhd->bqhd", (scores - lse[..., None]).exp(), v), lse


@torch.jit.script
def joined(
    out: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum so far and one part more, in fp32; lse is [batch, tokens, heads, 1]."""
    part_lse = part_lse.transpose(1, 2).unsqueeze(-1)
    total = torch.logaddexp(lse, part_lse)
    return torch.exp(lse - total) * out + torch.exp(part_lse - total) * part.float(), total


def forward(
    case: str, q: Tensor, k: Tensor, v: Tensor, steps: int, without: str, group: Any
) -> tuple[Tensor, Tensor]:
    half = q.shape[1] // 2
    messages = Messages(group, without == "exchange")
    out = lse = None
    known: dict[bool, tuple[Tensor, Tensor]] = {}
    for step in range(steps):
        following = messages.start((k, v)) if step + 1 < steps else (k, v)
        late = case == "late" and step > 0
        queries = q[:, half:] if late else q
        early = case == "early" and step > 0
        keys, values = (k[:, :half], v[:, :half]) if early else (k, v)
        if without != "attention" or late not in known:
            known[late] = attend(queries, keys, values, step == 0)
        part, part_lse = known[late]
        if out is None:
            out = part.float()
            lse = part_lse.transpose(1, 2).unsqueeze(-1).float()
        elif without == "merge":
            pass
        elif late:
            later = joined(out[:, half:], lse[:, half:], part, part_lse)
            out[:, half:], lse[:, half:] = later
        else:
            out, lse = joined(out, lse, part, part_lse)
        messages.wait()
        k, v = following
    return out.to(q.dtype), lse.squeeze(-1).transpose(1, 2).contiguous()


def backward(
    case: str,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    steps: int,
    without: str,
    group: Any,
) -> Tensor:
    """The gradients' way round: those of K and V travel in fp32, one step behind the keys."""
    half = q.shape[1] // 2
    inputs = Messages(group, without == "exchange")
    sums = Messages(group, without == "exchange")
    grad_half = grad[:, half:]
    q_half = q[:, half:]
    out_half = out[:, half:]
    lse_half = lse[:, :, half:].contiguous()
    seed = torch.zeros(2, dtype=torch.int64, device=q.device)
    known: dict[tuple[bool, bool], Any] = {}
    arriving: tuple[Tensor, ...] = ()
    for step in range(steps):
        following = inputs.start((k, v)) if step + 1 < steps else (k, v)
        late = case == "late" and step > 0
        early = case == "early" and step > 0
        keys, values = (k[:, :half], v[:, :half]) if early else (k, v)
        g, a, o, s = (grad_half, q_half, out_half, lse_half) if late else (grad, q, out, lse)
        if without != "attention" or (late, early) not in known:
            known[late, early] = torch.ops.aten._flash_attention_backward(
                g.contiguous(),
                a,
                keys,
                values,
                o,
                s,
                None,
                None,
                a.shape[1],
                keys.shape[1],
                0.0,
                step == 0,
                seed,
                seed,
            )
        dq_part, dk_part, dv_part = known[late, early]
        if step == 0:
            dq, dk, dv = (part.float() for part in (dq_part, dk_part, dv_part))
        else:
            sums.wait()
            dk, dv = arriving
            if without != "merge":
                (dq[:, half:] if late else dq).add_(dq_part)
                (dk[:, :half] if early else dk).add_(dk_part)
                (dv[:, :half] if early else dv).add_(dv_part)
        inputs.wait()
        k, v = following
        arriving = sums.start((dk, dv))
    sums.wait()
    return dq.to(q.dtype), *(part.to(q.dtype) for part in arriving)


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """(ms by events, ms of the processor to launch) an iteration, of the slowest GPU."""
    for _ in range(WARM_UPS):
        run()
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    started = time.perf_counter()
    for _ in range(LOOPS):
        run()
    launched = time.perf_counter() - started
    end.record()
    torch.cuda.synchronize()
    both = torch.tensor([begin.elapsed_time(end), 1e3 * launched], device="cuda") / LOOPS
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return float(both[0]), float(both[1])


def rows(seconds: float) -> list[dict[str, Any]]:
    """All forwards first, then backwards, until the time is over; both GPUs stop at the same row."""
    ends = time.monotonic() + seconds
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    preferred = dist.new_group([*range(dist.get_world_size())], pg_options=options)
    table = []
    for passes in ("fwd", "bwd"):
        for case, tokens, heads, kv_heads, steps in CASES:
            shape = {"device": "cuda", "dtype": torch.bfloat16}
            q, grad = (torch.randn(1, tokens, heads, HEAD_DIM, **shape) for _ in range(2))
            k, v = (torch.randn(1, tokens, kv_heads, HEAD_DIM, **shape) for _ in range(2))
            for without in (*LEFT_OUT, "priority"):
                over = torch.tensor([float(time.monotonic() > ends)], device="cuda")
                dist.all_reduce(over, dist.ReduceOp.MAX)
                if float(over):
                    return table
                group = preferred if without == "priority" else None
                if passes == "fwd":
                    run = partial(forward, case, q, k, v, steps, without, group)
                else:
                    out, lse = forward(case, q, k, v, steps, "nothing", None)
                    run = partial(backward, case, grad, q, k, v, out, lse, steps, without, group)
                ms, host_ms = timed(run)
                row = (case, passes, tokens, heads, kv_heads, steps, without, ms, host_ms)
                table.append(dict(zip(COLUMNS, row, strict=True)))
                if dist.get_rank() == 0:
                    print(*row, flush=True)
    return table


def check() -> None:
    """Raises SystemExit: the ring of all ranks is not attention of this rank's queries and everybody's keys."""
    torch.manual_seed(0)
    world = dist.get_world_size()
    rank = dist.get_rank()
    tokens = 16
    q, k, v = (torch.randn(1, world * tokens, 4, 8) for _ in range(3))
    mine = slice(rank * tokens, (rank + 1) * tokens)
    out, _ = forward("full", q[:, mine], k[:, mine], v[:, mine], world, "nothing", None)
    # The first step is causal within the chunk; the others read all keys.
    output, own_lse = attend(q[:, mine], k[:, mine], v[:, mine], True)
    expected = output.float()
    lse = own_lse.transpose(1, 2).unsqueeze(-1)
    for other in range(world):
        if other != rank:
            theirs = slice(other * tokens, (other + 1) * tokens)
            expected, lse = joined(
                expected, lse, *attend(q[:, mine], k[:, theirs], v[:, theirs], False)
            )
    if not torch.allclose(out, expected, atol=1e-5):
        raise SystemExit(f"wrong on rank {rank}")
    if rank == 0:
        print("the ring computes attention")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="table to write")
    parser.add_argument("--check", action="store_true", help="compare on CPUs; nothing is timed")
    parser.add_argument("--seconds", type=float, default=90.0, help="stop after so long")
    options = parser.parse_args()
    dist.init_process_group("gloo" if options.check else "nccl")
    if options.check:
        check()
    else:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        table = rows(options.seconds)
        if dist.get_rank() == 0:
            with options.out.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(table)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
