"""Counts the launches of frames.cu: how the L2 keeps local memory, and sectors that are stored in parts.

    python experiments/frames.py --out h200_frames.csv

On a GPU of cc 9.0 with nvcc and ncu. A row is a launch from a flushed L2: what the program says of it, and counters.
Launches of `local-last-use` load by LDL.LU, which ptxas writes for spilled registers alone: here it is written into the
program, bit 85 of each LDL.64. The four first launches are of examples/kernels: as compiled, and (`-plain`) with LDL in
place of LDL.LU; they are left out where the folder has no such cubins.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent / "frames.cu"
KERNEL = b".text._Z6framesILi1E"
NVIDIA_ELF, SECTION_BYTES, INSTRUCTION_BYTES = 190, 64, 16
LDL, WIDTH_64, LAST_USE = 0x983, 0x0A, 1 << 21
METRICS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "l1tex__m_xbar2l1tex_read_bytes.sum",
    "l1tex__m_l1tex2xbar_write_bytes.sum",
    "lts__t_sectors_srcunit_ltcfabric.sum",
    "lts__t_sectors_op_read_lookup_miss.sum",
    "lts__t_sectors_srcunit_tex_evict_first.sum",
    "lts__d_sectors_fill_device.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
    "gpu__time_duration.sum",
)
KERNELS = "regex:frames|columns|merge|transpose|spilling_tile|attention"


def number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def with_last_uses(program: bytes) -> bytes:
    """The program with LDL.LU.64 for each LDL.64 of frames<1>."""
    changed = bytearray(program)
    for start in (m.start() for m in re.finditer(rb"\x7fELF\x02\x01\x01", program)):
        if number(program, start + 18, 2) != NVIDIA_ELF:
            continue
        # The ELF header says where section headers are, how many, and which of them holds names.
        headers = start + number(program, start + 40, 8)
        sections = number(program, start + 60, 2)
        names = number(program, start + 62, 2)
        text = start + number(program, headers + SECTION_BYTES * names + 24, 8)
        for header in (headers + SECTION_BYTES * n for n in range(sections)):
            if not program[text + number(program, header, 4) :].startswith(KERNEL):
                continue
            first = start + number(program, header + 24, 8)
            for at in range(first, first + number(program, header + 32, 8), INSTRUCTION_BYTES):
                low = number(program, at, 8)
                high = number(program, at + 8, 8)
                if low & 0xFFF == LDL and high >> 8 & 0xFF == WIDTH_64:
                    changed[at + 8 : at + 16] = (high | LAST_USE).to_bytes(8, "little")
    return bytes(changed)


def counted(program: Path, part: int, folder: Path) -> list[dict[str, Any]]:
    """The launches of one part of the program, with their counters."""
    launches, report = folder / "launches.csv", folder / "report"
    how = ("--clock-control", "none", "--cache-control", "all", "-f", "-k", KERNELS)
    command = ["ncu", *how, "--metrics", ",".join(METRICS), "-o", report, program, launches]
    subprocess.run([*command, str(part)], check=True, capture_output=True)
    page = ["ncu", "--import", f"{report}.ncu-rep", "--csv", "--page", "raw", "--print-units"]
    text = subprocess.run([*page, "base"], check=True, capture_output=True, text=True).stdout
    values = list(csv.DictReader(io.StringIO(text)))[1:]
    with launches.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [
        row | {metric: value[metric].replace(",", "") for metric in METRICS}
        for row, value in zip(rows, values, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        program = Path(name) / "frames"
        build = ["nvcc", "-std=c++17", "-O3", "-arch=sm_90a", "--no-compress", "-o"]
        subprocess.run([*build, program, SOURCE], check=True)
        program.write_bytes(with_last_uses(program.read_bytes()))
        rows = [row for part in (0, 1) for row in counted(program, part, Path(name))]
    with args.out.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
