"""Where descriptions of the catalog differ from what the kernels are compiled to: `python benchmarks/held_to_code.py`.

Reads the loops over keys of experiments/measurements/catalog_loops.csv and pytorch_loops.csv, and compares with each what
the catalog says of a step of such a call. A row is a difference; --write puts them into
tests/code/catalog_differences.csv, to which a test holds them. Compared are

    unit          HMMA, HGMMA or none; no description states the shape of a product
    flops         of a warp's products, of wgmma a warpgroup's
    exps          of a thread: its scores, and one of each of its rows
    stored        bytes of spilled registers that a thread stores
    spills        loads and stores of them, each of a word or two
    loads         whether K and V come asynchronously
    loaded        bytes a thread loads of K and V, and of Q where it is read again
    operations    fp32, integer and conversion instructions a score, where the description states some

Not compared are the memory-efficient kernel's FLOPs and loads, and what the minimal kernels load: loops inside the step
turn as often as a head has columns, which is decided at run time, and are counted once. Builds of
FlashAttention-2 are those for fp16 without dropout, window, bias or soft cap that a call of its tile runs.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from recorders import ROOT

from iosim import AttentionProblem, InputError, load_profile, resolve
from iosim.base.files import write_whole
from iosim.catalog.algorithms import plan
from iosim.readers.timing.step_terms import BACKWARD_OPERATIONS_PER_SCORE, FP32_OPERATIONS_PER_SCORE

RECORDED = ROOT / "experiments" / "measurements"
DIFFERENCES = ROOT / "tests" / "code" / "catalog_differences.csv"
COLUMNS = (
    "kernel",
    "pass",
    "cc",
    "head_dim",
    "dtype",
    "mask",
    "edges",
    "quantity",
    "description",
    "code",
    "reason",
)
GPUS = {75: "t4", 80: "a100-sxm-80gb", 90: "h200-sxm"}
WHOLE, RAGGED = 2048, 2045
LANES, ROWS_A_LANE_ROW, WORD = 32, 8, 4
"""Lanes of a warp; rows of a warp for each that a lane has a part of; bytes of a spilled register."""
FLASH = re.compile(
    r"flash_(fwd_kernel|bwd_dq_dk_dv_loop_seqk_parallel_kernel)\w*?half_tE\w*?"
    r"Flash_kernel_traitsILi(\d+)ELi(\d+)ELi(\d+)ELi\d+E\w*?EE((?:Lb[01]E)+)EEv"
)
BACKWARD_TRAITS = re.compile(r"Flash_bwd_kernel_traitsI(?:Li\d+E)+Lb([01])ELb([01])E")
"""Whether a backward's build has V in registers, and Q in one buffer (kernel_traits.h)."""
EFFICIENT = re.compile(r"fmha_cutlassF_(f16|f32)_aligned_(\d+)x(\d+)_(rf|gmem)_sm")
DROPOUT, CAUSAL, LOCAL, ALIBI, EVEN_MN, EVEN_K, SOFTCAP = range(7)
"""Flags of FlashAttention-2's templates (flash_fwd_kernel.h, flash_bwd_kernel.h)."""
RUN_TIME = {
    "cutlass": ("flops", "loaded", "loads"),
    "minimal": ("exps", "loaded"),
    "minimal-cu": ("loaded",),
}
"""Quantities that depend on turns decided at run time."""
REASONS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "cutlass fwd 75",
        ("operations",),
        "the code has the ways for masks, bias and dropout, too, which a call without them leaves out",
    ),
    (
        "cutlass fwd",
        ("stored", "spills"),
        "a loop inside the step, whose turns are decided at run time, is listed once; described is what counters say",
    ),
    (
        "flash-cu fwd 90 256",
        ("spills",),
        "a word that is stored before the loop, loaded in its last turn",
    ),
    (
        "flash-sm90 fwd",
        ("exps",),
        "exponentials are taken early, and in a branch again where a row's maximum rises",
    ),
    (
        "triton fwd 75",
        ("exps",),
        "a lane has parts of four rows, whose sums it rescales, not of two",
    ),
    (
        "fa2 bwd",
        ("stored", "spills"),
        "the loop holds its last turn, which loads what was stored before: by the counters of cc 9.0 no step stores",
    ),
    (
        "fa2 fwd 90 32",
        ("stored",),
        "by counters, in least squares over two lengths: tiles of one step leave before the loop's stores",
    ),
)
"""Why a description differs from code and still is right: how the call begins, of which quantities, the reason."""
BULK = ("flash-sm90",)
"""Kernels that load by TMA, whose bytes do not stand in the code."""


class Call(NamedTuple):
    kernel: str
    direction: str
    cc: int
    head_dim: int
    dtype: str
    mask: str
    edges: str
    tile: str = ""
    """The tile that its name states, if any."""


def calls(row: Mapping[str, str]) -> Iterator[Call]:
    """The call that a recorded row's build is for; none where the catalog has no such build."""
    cc = int(row["cc"])
    if "catalog" in row:
        yield Call(
            row["catalog"],
            row["pass"],
            cc,
            int(row["head_dim"]),
            row["dtype"],
            row["mask"],
            "whole",
        )
    elif match := FLASH.search(row["kernel"]):
        yield from _flash_call(match, cc, row["kernel"])
    elif match := EFFICIENT.search(row["kernel"]):
        width = {"64": 64, "128": 128}[match[3]] if match[4] == "rf" else 256
        dtype = {"f16": "fp16", "f32": "fp32"}[match[1]]
        yield Call("cutlass", "fwd", cc, width, dtype, "none", "whole", f"{match[2]}x{match[3]}")


def _flash_call(match: re.Match[str], cc: int, name: str) -> Iterator[Call]:
    flags = [flag == "1" for flag in re.findall(r"Lb([01])E", match[5])]
    width = int(match[2])
    direction = match[1][:3]
    if not flags[EVEN_K] or any(flags[n] for n in (DROPOUT, LOCAL, ALIBI)) or any(flags[SOFTCAP:]):
        return
    # Of one tile the build for a GPU whose CTA may have 163 KB and more (flash_bwd_launch_template.h).
    traits = BACKWARD_TRAITS.search(name)
    large = (str(int(width in (32, 96))), str(int(width == 256 and cc == 80)))
    if traits is not None and traits.groups() != large:
        return
    edges = "whole" if flags[EVEN_MN] else "ragged"
    mask = "causal" if flags[CAUSAL] else "none"
    yield Call("fa2", direction, cc, width, "fp16", mask, edges, f"{match[3]}x{match[4]}")


def recorded() -> Iterator[tuple[Call, Mapping[str, str]]]:
    for name in ("catalog_loops.csv", "pytorch_loops.csv"):
        with (RECORDED / name).open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                for call in calls(row):
                    yield call, row


@cache
def described(call: Call) -> Mapping[str, float | str] | None:
    """What the catalog says of a step; None where it takes another tile for the call."""
    profile = load_profile(GPUS[call.cc])
    tokens = WHOLE if call.edges == "whole" else RAGGED
    problem = AttentionProblem(
        batch=2,
        heads=8,
        seq_q=tokens,
        seq_k=tokens,
        head_dim=call.head_dim,
        dtype=call.dtype,
        mask=call.mask,
        passes=call.direction,
    )
    try:
        kernel = resolve(call.kernel, problem, profile)
    except InputError:
        return None
    settings = kernel.of_pass(call.direction == "bwd")
    tile, spill = settings.tile or kernel.tile, settings.spill
    if call.tile and str(tile) != call.tile:
        return None
    launch = max(plan(problem, kernel).launches, key=lambda launch: launch.work.flops_per_pair)
    unit = _unit(
        str(kernel.unit_of(call.direction == "bwd") or "mma.sync"), call, launch.work.tensor_cores
    )
    # Warpgroups that only load take no part in products.
    apart = unit == "HGMMA" and "specialised" in str(kernel.matrix_unit)
    warps = tile.warps - (4 if apart else 0)
    scores = tile.block_q * tile.block_k / warps
    # Each value of 3xTF32 is two parts; a product of wgmma is a warpgroup's.
    products = (3 if "3xtf32" in str(kernel.matrix_unit) else 1) * (4 if unit == "HGMMA" else 1)
    backward = call.direction == "bwd"
    # A product gives a lane 2 rows of 16; a thread of the minimal kernels has one row, and rescales old and new sums.
    row_exps = 2 if not launch.work.tensor_cores else tile.block_q / warps / ROWS_A_LANE_ROW
    if kernel.algorithm == "efficient":  # a thread a row rescales
        row_exps = 1
    operands = tile.block_k * 2 * call.head_dim + (
        tile.block_q * call.head_dim if kernel.rereads_q else 0
    )
    values: dict[str, float | str] = {
        "unit": unit,
        "flops": launch.work.flops_per_pair * scores * products if unit != "none" else 0.0,
        "exps": launch.work.exps_per_pair * scores / LANES + (0 if backward else row_exps),
        "stored": spill.write_per_pair if spill else 0.0,
        "spills": spill.accesses_per_pair if spill else 0.0,
    }
    if not backward and call.kernel not in BULK:
        ahead = launch.work.loop.loads_ahead is not False and call.cc >= 80
        values["loads"] = "asynchronous" if ahead else "synchronous"
        values["loaded"] = operands * problem.input_type.bytes / (warps * LANES)
    if launch.work.loop.score_operations:
        beside = FP32_OPERATIONS_PER_SCORE + call.head_dim / tile.block_k
        beside += BACKWARD_OPERATIONS_PER_SCORE if backward else 0
        values["operations"] = beside + launch.work.loop.score_operations
    return {
        name: value for name, value in values.items() if name not in RUN_TIME.get(call.kernel, ())
    }


def _unit(unit: str, call: Call, tensor_cores: bool) -> str:
    """What a unit's products are called in machine code."""
    if not tensor_cores or (call.dtype == "fp32" and "tf32" not in unit):
        return "none"
    return "HGMMA" if unit.startswith("wgmma") and call.cc >= 90 else "HMMA"


def counted(call: Call, row: Mapping[str, str]) -> Mapping[str, float | str]:
    """The same quantities in machine code."""
    units = sorted(set(re.findall(r"H\w*MMA", row["products"])))
    loads = float(row["local_load_bytes"])
    stores = float(row["local_store_bytes"])
    copies = float(row["global_asynchronous"])
    into_registers = float(row["global_synchronous"])
    scores = float(row["ex2"]) or 1.0
    work = sum(float(row[name]) for name in ("fp32", "integer", "conversions"))
    return {
        "unit": "+".join(units) or "none",
        "flops": float(row["flops"]),
        "exps": float(row["ex2"]),
        "stored": stores,
        "spills": (loads + stores) / WORD,
        "loads": "asynchronous" if copies else "synchronous",
        "loaded": copies + into_registers,
        "operations": round(work / scores, 1),
    }


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.10g}"


def differences() -> list[tuple[str, ...]]:
    """Rows of what differs, in the order of the tables."""
    rows = []
    for call, row in recorded():
        code = counted(call, row)
        for name, value in (described(call) or {}).items():
            if not agree(name, value, code[name]):
                why = reason(call, name)
                rows.append((*map(str, call[:-1]), name, _text(value), _text(code[name]), why))
    return rows


def agree(quantity: str, described: float | str, code: float | str) -> bool:
    """True where a description says what the code does, whose words of spilled registers come one or two at a time."""
    if quantity != "spills" or isinstance(described, str) or isinstance(code, str):
        return _text(described) == _text(code)
    return described <= code <= 2 * described


def reason(call: Call, quantity: str) -> str:
    """Why a description may differ from the code; empty where nothing is known: then it is wrong."""
    begins = " ".join(map(str, call))
    reasons = (
        why for start, names, why in REASONS if begins.startswith(start) and quantity in names
    )
    return next(reasons, "")


def compared() -> set[tuple[str, str]]:
    """Kernels and passes of which a build was compared."""
    return {call[:2] for call, _ in recorded() if described(call) is not None}


def text(rows: list[tuple[str, ...]]) -> str:
    """The table of differences."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"write {DIFFERENCES.name}")
    if parser.parse_args().write:
        write_whole(DIFFERENCES, text(differences()))
    else:
        print(text(differences()), end="")


if __name__ == "__main__":
    main()
