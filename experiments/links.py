"""Messages, collectives and attention over several GPUs of one host:
`torchrun --nproc-per-node 2 experiments/links.py --out FILE.csv`; `python benchmarks/links.py --table FILE.csv` sets
predictions beside the rows.

An exchange sends so many MiB each way between neighbours; a collective has so many on each GPU. Attention is
PyTorch's flash kernel in bf16, a part of the tokens on each GPU: `ring` and `zigzag` pass keys and values on while
they compute, `ulysses` changes tokens for heads and back, `all_gather_kv` collects all keys and values first. Its rows
have also the seconds without communication, and of a GPU's own part alone. A row is the mean of loops, on the slowest
GPU. `--check` compares results with attention on one device, in fp32 on CPUs with gloo: no GPU is needed.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

MIB = 1 << 20
COLUMNS = (
    "what",
    "heads",
    "tokens",
    "causal",
    "MiB",
    "ms",
    "ms_without_exchange",
    "ms_local_kernel",
)
EXCHANGED = (0.001, 0.1, 1.0, 8.0, 64.0, 256.0)
COLLECTED = (1.0, 16.0, 64.0, 256.0)
CALLS = (
    # what, heads, tokens, causal
    ("zigzag", 16, 65536, True),
    ("ring", 16, 65536, True),
    ("zigzag", 32, 8192, True),
    ("ulysses", 32, 16384, False),
    ("ulysses", 32, 32768, True),
    ("all_gather_kv", 16, 65536, False),
    ("all_gather_kv", 32, 16384, False),
)
HEAD_DIM = 128
LOOPS, WARM_UPS = 20, 5
Tensor = Any


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """(output, log-sum-exp) of [1, heads, tokens, head_dim]."""
    if q.is_cuda:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, is_causal=causal)
        return out.float(), lse
    scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
    if causal:
        scores = scores.masked_fill(
            torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf")
        )
    lse = scores.logsumexp(dim=3)
    return (scores - lse[..., None]).exp() @ v, lse


def merged(first: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Of two parts of the keys."""
    lse = torch.logaddexp(first[1], two[1])
    weights = [(part[1] - lse).exp()[..., None] for part in (first, two)]
    return first[0] * weights[0] + two[0] * weights[1], lse


def passed_on(tensor: Tensor, exchange: bool) -> tuple[Tensor, list[Any]]:
    """(what the GPU before sends, what to wait for)."""
    rank, world = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(tensor)
    if not exchange:
        return tensor, []
    operations = [
        dist.P2POp(dist.isend, tensor, (rank + 1) % world),
        dist.P2POp(dist.irecv, arriving, (rank - 1) % world),
    ]
    return arriving, list(dist.batch_isend_irecv(operations))


def around(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, zigzag: bool, exchange: bool = True
) -> Tensor:
    """Keys and values go round. In zigzag a GPU has a chunk from each end of the sequence."""
    rank = dist.get_rank()
    world = dist.get_world_size()
    half = q.shape[2] // 2
    keys = torch.stack((k, v))
    merged_half = None
    for step in range(world):
        arriving, waits = passed_on(keys, exchange) if step + 1 < world else (keys, [])
        source = (rank - step) % world
        k, v = keys
        if step == 0:
            merged_half = attend(q, k, v, causal)
        elif not causal or (source < rank and not zigzag):
            merged_half = merged(merged_half, attend(q, k, v, False))
        elif zigzag and source < rank:
            merged_half = merged(merged_half, attend(q, k[:, :, :half], v[:, :, :half], False))
        elif zigzag:
            later = merged(
                (merged_half[0][:, :, half:], merged_half[1][:, :, half:]),
                attend(q[:, :, half:], k, v, False),
            )
            merged_half = tuple(
                torch.cat((part[:, :, :half], new), dim=2)
                for part, new in zip(merged_half, later, strict=True)
            )
        for wait in waits:
            wait.wait()
        keys = arriving
    return merged_half[0]


def heads_for_tokens(tensor: Tensor, back: bool) -> Tensor:
    """All tokens of a share of the heads, or back."""
    world = dist.get_world_size()
    parts = [part.contiguous() for part in tensor.chunk(world, dim=2 if back else 1)]
    arriving = [torch.empty_like(part) for part in parts]
    if tensor.is_cuda:
        dist.all_to_all(arriving, parts)
    else:  # gloo has none
        everyone = [[torch.empty_like(part) for part in parts] for _ in range(world)]
        for whose, place in enumerate(everyone):
            for n, part in enumerate(parts):
                dist.broadcast(
                    place[n] if dist.get_rank() != whose else place[n].copy_(part), whose
                )
        arriving = [place[dist.get_rank()] for place in everyone]
    return torch.cat(arriving, dim=1 if back else 2)


def ulysses(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    output, _ = attend(*(heads_for_tokens(tensor, back=False) for tensor in (q, k, v)), causal)
    return heads_for_tokens(output.to(q.dtype), back=True)


def all_gather_kv(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    world = dist.get_world_size()
    keys = torch.stack((k, v))
    whole = [torch.empty_like(keys) for _ in range(world)]
    dist.all_gather(whole, keys)
    k, v = torch.cat(whole, dim=3)
    return attend(q, k, v, causal)[0]


METHODS: dict[str, Callable[..., Tensor]] = {
    "ring": lambda *a, **more: around(*a, zigzag=False, **more),
    "zigzag": lambda *a, **more: around(*a, zigzag=True, **more),
    "ulysses": ulysses,
    "all_gather_kv": all_gather_kv,
}


def own_tokens(method: str, tokens: int) -> Tensor:
    """Which tokens of the sequence lie on this GPU."""
    rank = dist.get_rank()
    world = dist.get_world_size()
    order = torch.arange(tokens)
    if method != "zigzag":
        return order.chunk(world)[rank]
    chunks = order.chunk(2 * world)
    return torch.cat((chunks[rank], chunks[2 * world - 1 - rank]))


def seconds(run: Callable[[], Any]) -> float:
    """Of a loop, on the slowest GPU."""
    for _ in range(WARM_UPS):
        run()
    torch.cuda.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(LOOPS):
        run()
    torch.cuda.synchronize()
    slowest = torch.tensor([(time.perf_counter() - begin) / LOOPS], device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def messages() -> Iterator[tuple[str, float, float]]:
    """(what, MiB, seconds)."""
    world = dist.get_world_size()

    def exchange(tensor: Tensor) -> None:
        for wait in passed_on(tensor, exchange=True)[1]:
            wait.wait()

    def held(mib: float, times: float = 1) -> Tensor:
        return torch.zeros(
            max(world, int(mib * MIB * times) // 2 // world * world),
            dtype=torch.bfloat16,
            device="cuda",
        )

    for mib in EXCHANGED:
        tensor = held(mib)
        yield "exchange", mib, seconds(lambda tensor=tensor: exchange(tensor))
    for mib in COLLECTED:
        a, same, larger, part = held(mib), held(mib), held(mib, world), held(mib, 1 / world)
        yield "all_to_all", mib, seconds(lambda a=a, to=same: dist.all_to_all_single(to, a))
        yield "all_gather", mib, seconds(lambda a=a, to=larger: dist.all_gather_into_tensor(to, a))
        yield "reduce_scatter", mib, seconds(lambda a=a, to=part: dist.reduce_scatter_tensor(to, a))


def calls() -> Iterator[dict[str, Any]]:
    for call_name, heads, tokens, causal in CALLS:
        shape = (1, heads, tokens // dist.get_world_size(), HEAD_DIM)
        q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        row = {"what": call_name, "heads": heads, "tokens": tokens, "causal": int(causal)}
        method = METHODS[call_name]
        row["ms"] = 1e3 * seconds(
            lambda q=q, k=k, v=v, causal=causal, method=method: method(q, k, v, causal)
        )
        if method is METHODS["ring"] or method is METHODS["zigzag"]:
            alone = seconds(
                lambda q=q, k=k, v=v, causal=causal, method=method: method(
                    q, k, v, causal, exchange=False
                )
            )
            row["ms_without_exchange"] = 1e3 * alone
        if call_name != "all_gather_kv":
            heads_here = (
                [tensor.reshape(1, -1, tokens, HEAD_DIM) for tensor in (q, k, v)]
                if call_name == "ulysses"
                else (q, k, v)
            )
            row["ms_local_kernel"] = 1e3 * seconds(
                lambda a=heads_here, causal=causal: attend(*a, causal)
            )
        yield row


def check() -> None:
    """Raises SystemExit: a method's result is not attention's on one device."""
    for method, causal in (
        ("ring", True),
        ("ring", False),
        ("zigzag", True),
        ("ulysses", True),
        ("all_gather_kv", False),
    ):
        torch.manual_seed(0)
        whole = [torch.randn(1, 12, 48, 8) for _ in range(3)]
        here = own_tokens(method, 48)
        output = METHODS[method](*(tensor[:, :, here].contiguous() for tensor in whole), causal)
        if not torch.allclose(output, attend(*whole, causal)[0][:, :, here], atol=1e-5):
            raise SystemExit(f"{method}, causal {causal}, is wrong on rank {dist.get_rank()}")
    if dist.get_rank() == 0:
        print("ring, zigzag, ulysses and all_gather_kv compute attention")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="table to write")
    parser.add_argument(
        "--check", action="store_true", help="compare results on CPUs; nothing is timed"
    )
    options = parser.parse_args()
    dist.init_process_group("gloo" if options.check else "nccl")
    if options.check:
        check()
    else:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        rows = [
            {"what": collective, "MiB": mib, "ms": 1e3 * taken}
            for collective, mib, taken in messages()
        ]
        rows += list(calls())
        if dist.get_rank() == 0:
            with options.out.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS, restval="")
                writer.writeheader()
                writer.writerows(rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
