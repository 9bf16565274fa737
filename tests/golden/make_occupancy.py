"""Records what NVIDIA's own occupancy calculator says: `python tests/golden/make_occupancy.py` writes occupancy.csv.

Needs g++ and `cuda_occupancy.h` of a CUDA toolkit. Device limits stand here a second time on purpose: a wrong number in
a profile must differ from the table.
"""

from __future__ import annotations

import csv
import io
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).with_name("occupancy.csv")
CASES_PER_DEVICE = 300
SEED = 20240607

# Compute capability: threads per SM, then KB of shared memory: per SM, per block with opt-in, reserved per block.
DEVICES = {
    "7.0": (2048, 96, 96, 0),
    "7.5": (1024, 64, 64, 0),
    "8.0": (2048, 164, 163, 1),
    "8.6": (1536, 100, 99, 1),
    "8.9": (1536, 100, 99, 1),
    "9.0": (2048, 228, 227, 1),
    "10.0": (2048, 228, 227, 1),
    "12.0": (1536, 100, 99, 1),
}
INPUTS = ("cc", "threads", "registers", "static_bytes", "dynamic_bytes", "carveout")
LIMITS = ("warps", "registers_limit", "shared_memory", "blocks")
OUTPUTS = ("ctas", *LIMITS, "registers_per_cta", "shared_per_cta", "factors")

PROGRAM = r"""
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
    int major, minor, threads_per_sm, sm_kb, optin_kb, reserved_kb, threads, registers, stat, dyn, carveout;
    while (scanf("%d %d %d %d %d %d %d %d %d %d %d", &major, &minor, &threads_per_sm, &sm_kb, &optin_kb, &reserved_kb,
                 &threads, &registers, &stat, &dyn, &carveout) == 11) {
        cudaOccDeviceProp device;
        device.computeMajor = major;
        device.computeMinor = minor;
        device.maxThreadsPerBlock = 1024;
        device.maxThreadsPerMultiprocessor = threads_per_sm;
        device.regsPerBlock = device.regsPerMultiprocessor = 65536;
        device.warpSize = 32;
        device.sharedMemPerBlock = 48 * 1024;
        device.sharedMemPerMultiprocessor = sm_kb * 1024;
        device.sharedMemPerBlockOptin = optin_kb * 1024;
        device.reservedSharedMemPerBlock = reserved_kb * 1024;
        device.numSms = 1;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024;
        kernel.numRegs = registers;
        kernel.sharedSizeBytes = stat;
        kernel.maxDynamicSharedSizeBytes = dyn;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        cudaOccDeviceState state;
        state.carveoutConfig = carveout;
        cudaOccResult r;
        if (cudaOccMaxActiveBlocksPerMultiprocessor(&r, &device, &kernel, &state, threads, dyn) != CUDA_OCC_SUCCESS) {
            puts("-1,0,0,0,0,0,0,0");
            continue;
        }
        printf("%d,%d,%d,%d,%d,%d,%zu,%u\n", r.activeBlocksPerMultiprocessor, r.blockLimitWarps, r.blockLimitRegs,
               r.blockLimitSharedMem, r.blockLimitBlocks, r.allocatedRegistersPerBlock, r.allocatedSharedMemPerBlock,
               r.limitingFactors);
    }
}
"""


def header_directory() -> Path | None:
    """The include directory of a CUDA toolkit that has the calculator, or None."""
    nvcc = shutil.which("nvcc")
    roots = [
        os.environ.get("CUDA_HOME"),
        "/usr/local/cuda",
        str(Path(nvcc).resolve().parents[1]) if nvcc else None,
    ]
    for root in filter(None, roots):
        if (Path(root) / "include" / "cuda_occupancy.h").is_file():
            return Path(root) / "include"
    return None


def random_cases(per_device: int, seed: int) -> list[tuple[str, int, int, int, int, int]]:
    """Cases in the order of INPUTS; carveout -1 is no preference. Sizes at and around the limits come often."""
    rng = random.Random(seed)
    cases = []
    for cc, (_, _, optin_kb, _) in DEVICES.items():
        for _ in range(per_device):
            threads = rng.choice((32 * rng.randint(1, 32), rng.randint(1, 1024), 128, 256, 1056))
            registers = rng.choice((rng.randint(0, 255), 8 * rng.randint(1, 31), 255, 32))
            small = rng.randint(0, 40_000)
            large = rng.randint(0, optin_kb * 1024)
            edge = max(
                0, optin_kb * 1024 // rng.randint(1, 6) + rng.choice((-1024, -128, -1, 0, 1, 128))
            )
            shared = rng.choice((0, small, large, edge))
            static = rng.choice((0, 0, rng.randint(0, min(shared, 48 * 1024))))
            carveout = rng.choice((-1, -1, rng.randint(0, 100)))
            cases.append((cc, threads, registers, static, shared - static, carveout))
    return cases


def calculate(
    include: Path, cases: list[tuple[str, int, int, int, int, int]]
) -> list[dict[str, str]]:
    """The calculator's answers, as rows with the columns INPUTS and OUTPUTS."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "occupancy.cpp"
        program = Path(folder) / "occupancy"
        source.write_text(PROGRAM)
        subprocess.run(
            ["g++", "-O1", "-w", f"-I{include}", str(source), "-o", str(program)], check=True
        )
        lines = [" ".join(map(str, (*cc.split("."), *DEVICES[cc], *rest))) for cc, *rest in cases]
        answer = subprocess.run(
            [str(program)], input="\n".join(lines), capture_output=True, text=True, check=True
        )
    rows = answer.stdout.splitlines()
    return [
        dict(zip(INPUTS + OUTPUTS, [*map(str, case), *row.split(",")], strict=True))
        for case, row in zip(cases, rows, strict=True)
    ]


def as_csv(rows: list[dict[str, str]]) -> str:
    """The rows as the text of occupancy.csv."""
    text = io.StringIO()
    writer = csv.DictWriter(text, INPUTS + OUTPUTS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


if __name__ == "__main__":
    found = header_directory()
    if found is None or shutil.which("g++") is None:
        raise SystemExit(
            "needs g++ and a CUDA toolkit with include/cuda_occupancy.h; set CUDA_HOME"
        )
    GOLDEN.write_text(as_csv(calculate(found, random_cases(CASES_PER_DEVICE, SEED))))
