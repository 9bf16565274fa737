"""HBM reads of library kernels by where their tensors lie: `python experiments/placement.py --out h200_placement.csv`.

PyTorch's flash, memory-efficient and cuDNN backends run the same problems with Q, K and V at other places in memory,
under the profiler, from an empty L2: as the allocator gives them, and in one pool, at several bases, with gaps between
K and V, shifted by less than a page. The pool's first place is measured a second time at the end. The output lies where
the allocator puts it. `benchmarks/placement.py` sets the rows beside a prediction.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiment import FROM_EMPTY, counts, profiled, record, run_script

from iosim import InputError
from iosim.evidence.cuda.ncu import parse_raw

MIB = 1 << 20
PAGE = 2 * MIB
POOL = 3072 * MIB
BACKENDS = {
    "pytorch_flash": "FLASH_ATTENTION",
    "pytorch_mem_efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}
COUNTED = ("hbm_read", "hbm_write", "l2_fabric")
KERNELS = "regex:flash|fmha|sdpa|cudnn"
ALLOCATIONS = 3
SEED = 1


@dataclass(frozen=True)
class Case:
    """A problem and what computes it; `causal` is 0 or 1. bf16."""

    implementation: str
    batch: int
    heads: int
    seq: int
    head_dim: int
    causal: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.seq, self.head_dim

    @property
    def tensor_bytes(self) -> int:
        return 2 * self.batch * self.heads * self.seq * self.head_dim


CASES = (
    Case("pytorch_mem_efficient", 1, 8, 65536, 128, 1),
    Case("pytorch_flash", 1, 32, 16384, 128, 1),
    Case("pytorch_flash", 1, 4, 49152, 128, 1),
    Case("pytorch_flash", 1, 8, 65536, 128, 1),
    Case("pytorch_mem_efficient", 1, 4, 131072, 64, 0),
    Case("pytorch_flash", 1, 32, 8192, 128, 1),
    Case("cudnn", 1, 8, 65536, 128, 1),
    Case("pytorch_flash", 1, 8, 65536, 128, 0),
)


@dataclass(frozen=True)
class Place:
    """Q, K and V in the pool one after the other: from `base_mib` on, with `gap_mib` between K and V."""

    name: str
    base_mib: float = 0
    gap_mib: int = 0

    def offsets(self, tensor_bytes: int) -> tuple[int, int, int]:
        """Bytes from the pool's start to Q, K and V."""
        base = int(self.base_mib * MIB)
        return base, base + tensor_bytes, base + 2 * tensor_bytes + self.gap_mib * MIB


PLACES = (
    *(Place(f"base {n} MiB", base_mib=n) for n in (0, 512, 1026, 2078)),
    *(Place(f"gap {n} MiB", gap_mib=n) for n in (1, 2, 4, 8, 16, 32, 34, 64, 130)),
    *(Place(f"shift {n} MiB", base_mib=n) for n in (0.5, 1)),
    Place("base 0 MiB again"),
)


def placed(case: Case, pool: Any, random: Any) -> Iterator[tuple[str, list[Any]]]:
    """(name, [Q, K, V]) of every place. Before each fresh allocation another of random size is made."""
    import torch

    for n in range(ALLOCATIONS):
        torch.cuda.empty_cache()
        other = torch.empty(
            int(torch.randint(1, 64, (1,), generator=random)) * MIB,
            dtype=torch.uint8,
            device="cuda",
        )
        yield (
            f"allocation {n + 1}",
            [torch.empty(case.shape, dtype=torch.bfloat16, device="cuda") for _ in "qkv"],
        )
        del other
    torch.cuda.empty_cache()
    for place in PLACES:
        views = [pool[at : at + case.tensor_bytes] for at in place.offsets(case.tensor_bytes)]
        yield place.name, [view.view(torch.bfloat16).view(case.shape) for view in views]


def launch_all(out: Path) -> None:
    """One profiled call a case and place; writes where the tensors lay."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    torch.manual_seed(0)
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    pool = torch.empty(POOL, dtype=torch.uint8, device="cuda")
    random = torch.Generator().manual_seed(SEED)
    launched = []
    for case in CASES:
        for name, tensors in placed(case, pool, random):
            for tensor in tensors:
                tensor.normal_()
            with sdpa_kernel(getattr(SDPBackend, BACKENDS[case.implementation])):
                output = scaled_dot_product_attention(*tensors, is_causal=bool(case.causal))
                torch.cuda.synchronize()
                del output
                runtime.cudaProfilerStart()
                output = scaled_dot_product_attention(*tensors, is_causal=bool(case.causal))
                torch.cuda.synchronize()
                runtime.cudaProfilerStop()
            addresses = [tensor.data_ptr() for tensor in (*tensors, output)]
            launched.append(asdict(case) | {"place": name, "addresses": addresses})
            del tensors, tensor, output
    out.write_text(json.dumps(launched), encoding="utf-8")


def measured(folder: Path) -> pd.DataFrame:
    """A row a case and place: where its tensors lay, in pages from the lowest of all, and what was counted."""
    plan = folder / "made.json"
    options = [*FROM_EMPTY, "--profile-from-start", "off", "--kernel-name", KERNELS]
    launches, _ = parse_raw(
        profiled([__file__, "--launch", str(plan)], options, COUNTED, folder, leaves=plan)
    )
    calls = json.loads(plan.read_text(encoding="utf-8"))
    if len(launches) != len(calls):
        raise InputError(f"{len(launches)} launches were seen, {len(calls)} made")
    lowest = min(min(call["addresses"]) for call in calls) // PAGE * PAGE
    rows = []
    for call, launch in zip(calls, launches, strict=True):
        pages = [f"{(address - lowest) / PAGE:.12g}" for address in call.pop("addresses")]
        of_tensors = dict(zip(("q_page", "k_page", "v_page", "o_page"), pages, strict=True))
        rows.append(call | of_tensors | counts(launch, COUNTED))
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, help="CSV to write; its provenance goes beside it")
    parser.add_argument("--launch", type=Path, help="make the calls; for the profiler")
    parser.add_argument("--dry-run", action="store_true", help="count the calls; needs no GPU")
    arguments = parser.parse_args()
    if arguments.dry_run:
        for case in CASES:
            for place in PLACES:
                if (pool_bytes := place.offsets(case.tensor_bytes)[-1] + case.tensor_bytes) > POOL:
                    raise InputError(
                        f"{case}, {place.name}: {pool_bytes} bytes of a pool of {POOL}"
                    )
        print(f"{len(CASES) * (ALLOCATIONS + len(PLACES))} calls of {len(CASES)} problems")
        return
    if arguments.launch:
        launch_all(arguments.launch)
        return
    if arguments.out is None:
        parser.error("--out FILE is needed")
    out: Path = arguments.out
    record(
        out,
        measured,
        f"python experiments/placement.py --out {out.name}",
        FROM_EMPTY,
        inputs="random normal",
        pages="of 2 MiB, counted from the lowest that holds a tensor of the table",
    )


if __name__ == "__main__":
    run_script(main)
