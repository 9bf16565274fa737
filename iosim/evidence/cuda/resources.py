"""What is known of a tile of `flash_fwd` before it is built: how many CTAs an SM to build it for.

`kernels/resources.csv` has it of every tile that a tile picker may offer (`experiments/resources.py` generates it); for
others it is guessed from shared memory, warps and live values.
"""

from __future__ import annotations

import csv
import hashlib
from functools import cache
from pathlib import Path

from iosim.base.data import data_dir
from iosim.base.records import replace
from iosim.evidence.cuda.compiler import source_files
from iosim.evidence.cuda.spec import BUILT, STATIC_BYTES_MARGIN, FwdSpec
from iosim.hardware.profile_file import capability_fact
from iosim.kernel import resource_table
from iosim.kernel.resource_table import read_stamp

KEY = tuple(resource_table.COLUMNS)[:9]
REGISTERS_PER_SM, DRIVER_SHARED_BYTES = 65_536, 1_024
LIVE_LIMIT, LIVE_MARGIN = 224, 30

Row = dict[str, str]


def live_registers(spec: FwdSpec) -> int:
    """fp32 registers of a thread that hold output and scores (`FwdTraits::LiveRegisters`)."""
    row_tiles = spec.block_q // (16 * spec.warps)
    return row_tiles * (spec.head_dim // 2 + spec.block_k // 2)


def most_ctas(spec: FwdSpec, cc: str) -> int:
    """CTAs an SM that shared memory, warps and a guess at the registers allow."""
    shared = spec.dynamic_shared_bytes + STATIC_BYTES_MARGIN + (0 if cc == "7.5" else DRIVER_SHARED_BYTES)
    by_registers = REGISTERS_PER_SM // (spec.threads * (live_registers(spec) + LIVE_MARGIN))
    by_shared = (capability_fact(cc, "shared_memory_per_sm_bytes") or 0) // shared
    by_warps = (capability_fact(cc, "max_warps_per_sm") or 0) // spec.warps
    return max(1, min(by_registers, by_shared, by_warps))


def row_key(cc: str, spec: FwdSpec) -> tuple[str, ...]:
    causal = str(int(spec.mask == "causal"))
    sizes = (spec.head_dim, spec.block_q, spec.block_k, spec.warps, spec.stages)
    return ("flash_fwd", cc, *map(str, sizes), spec.dtype, causal)


def source_digest() -> str:
    """Changes with every edit of the sources that the table describes, comments and blanks apart."""
    digest = hashlib.sha256()
    for path in source_files("flash_fwd.cu"):
        lines = (line.split("//")[0].split() for line in path.read_text().splitlines())
        digest.update("\n".join(" ".join(words) for words in lines if words).encode())
    return digest.hexdigest()[:16]


def read_table(path: Path) -> dict[tuple[str, ...], Row]:
    """Rows by key; none where the table is missing or describes other sources than those here."""
    stamp = path.with_suffix(".toml")
    if not path.is_file() or not stamp.is_file():
        return {}
    if read_stamp(stamp)["sources"] != source_digest():
        return {}
    with path.open(newline="") as text:
        return {tuple(row[name] for name in KEY): row for row in csv.DictReader(text)}


@cache
def _shipped() -> dict[tuple[str, ...], Row]:
    return read_table(data_dir("kernels") / "resources.csv")


def tuned(spec: FwdSpec, cc: str) -> FwdSpec:
    """The spec built for the most CTAs an SM that spill nothing: the resource table's, or a guess where it has none;
    InputError where it cannot be built."""
    spec.check(cc)
    plain = replace(spec, dtype="fp16" if cc == "7.5" else "bf16", mask="none" if spec.mask == "none" else "causal")
    row = _shipped().get(row_key(cc, plain))
    return replace(spec, min_ctas=int(row["min_ctas"]) if row else most_ctas(spec, cc if cc in BUILT else "8.6"))
