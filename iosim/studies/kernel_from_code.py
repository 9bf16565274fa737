"""A kernel file of an attention kernel that is known by its code: tile, order and edges from its addresses, registers,
spills and the unit of its products from its machine code.

Which tensor is Q, K, V and O is told by the names of the arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.catalog.libraries.loader import choice_names, entry_names, keep_read
from iosim.catalog.libraries.new_file import file_text
from iosim.code.addresses import Evaluated, Site, evaluate
from iosim.code.addresses_launch import code_launch
from iosim.code.arguments import TensorArgument
from iosim.code.attention_tiles import NAMES, AttentionTiles, attention_tiles
from iosim.code.kernel_facts import KernelFacts, kernel_facts
from iosim.code.loops import Flow
from iosim.code.runs import runs_of_lines
from iosim.code.uses import uses_of
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.launch import Edge, Mode
from iosim.kernel.machine import Machine
from iosim.kernel.schedule import Scheduler
from iosim.kernel.unit import MatrixUnit
from iosim.prediction.code import CodeCall
from iosim.problem.attention import AttentionProblem
from iosim.studies.code import call_of
from iosim.studies.requests import CodeRequest

UNITS = (("tcgen05", MatrixUnit.TCGEN05), ("wgmma", MatrixUnit.WGMMA), ("mma", MatrixUnit.MMA_SYNC))
"""First part of an instruction of PTX, and what computes it."""
SOURCE = "counted in the code of {}: addresses of its PTX evaluated, its machine code read"


def kernel_file(request: CodeRequest, name: str | None = None) -> str:
    """The text of the file. Raises InputError: code or arguments that cannot be read, or no attention."""
    read = _read(request, name, None)
    return file_text(read.data, f"Read from the code of {read.call.entry.name}.")


def kernel_of_code(request: CodeRequest, problem: AttentionProblem | None = None) -> str:
    """The name by which a kernel that is known by its code may be given as a kernel in this process: as its file
    describes it, with the splits of its grid and the time of its own instructions.

    Args:
        request: a launch of it.
        problem: what is computed, whose heads and sequences its tensors have; by default as Q's shape says.

    Raises:
        InputError: code or arguments that cannot be read, or no attention.
    """
    read = _read(request, None, problem)
    data: dict[str, Any] = {**read.data, "machine": read.machine}
    if read.tiles.splits > 1:
        data["splits"] = read.tiles.splits
    # A name of the catalog's stands for the catalog's.
    name = data["name"]
    if name in (*entry_names(), *choice_names()):
        data["name"] = f"{name}-by-code"
    return keep_read(data)


@dataclass(frozen=True)
class _Read:
    """A launch of an attention kernel: its addresses' tiling, and what a kernel file says of it."""

    call: CodeCall
    evaluated: Evaluated
    tiles: AttentionTiles
    data: Mapping[str, Any]

    def machine(self, profile: HardwareProfile) -> Machine | None:
        """What an SM plays of its machine code; None where that is another GPU's, or is not there."""
        function = self.call.function
        if function is None or function.cc // 10 != profile.cc // 10 or function.cc > profile.cc:
            return None
        return launch_facts(self.call, self.evaluated, profile).machine


def launch_facts(call: CodeCall, evaluated: Evaluated, profile: HardwareProfile) -> KernelFacts:
    """What the machine code of a launch says of it, with the runs and the addresses of its PTX where it names lines of
    it."""
    assert call.function is not None
    function, shared = call.function, call.resources.shared_memory_bytes
    if not any(instruction.ptx_line is not None for instruction in function.instructions):
        return kernel_facts(function, profile, evaluated.threads, shared)
    missed = code_launch(evaluated, profile, call.resources).missed
    uses = uses_of(evaluated, missed, function.cc)
    runs = runs_of_lines(Flow(function), evaluated.runs)
    return kernel_facts(function, profile, evaluated.threads, shared, uses=uses, runs=runs)


def _read(request: CodeRequest, name: str | None, problem: AttentionProblem | None) -> _Read:
    profile = load_profile(request.gpu)
    call = call_of(request, profile)
    evaluated = evaluate(call.entry, call.grid, call.arguments, call.block)
    q, k = (_argument(evaluated, role) for role in ("Q", "K"))
    batch, heads = _heads(q) if problem is None else (problem.sequence_count, problem.heads)
    # Tile sides, order and direction follow from which rows each CTA's addresses touch.
    tiles = attention_tiles(evaluated, heads, batch)
    width, warps = q.shape[-1], max(1, evaluated.threads // profile.warp_size)
    # A step of the loop loads a block of K and one of V.
    stages = _stages(
        evaluated, tiles.block_k * (k.row_bytes * 2), call.resources.shared_memory_bytes
    )
    source = SOURCE.format(call.entry.name)
    if tiles.splits > 1:
        source += f"; {tiles.splits} splits, by its grid"
    data: dict[str, Any] = {
        "schema": 1,
        "name": name or _plain(call.entry.name),
        "title": call.entry.name,
        "algorithm": "flash",
        "source": source,
        "requires": {
            "dropout": False,
            "min_cc": profile.cc,
            "dtypes": [q.dtype],
            "head_dims": [width],
        },
        "kernel": _kernel_keys(call, evaluated, tiles),
        "tile": [
            {
                "head_dim": width,
                "block_q": tiles.block_q,
                "block_k": tiles.block_k,
                "warps": warps,
                "stages": stages,
            }
        ],
    }
    # Only machine code says how many registers spill, and where.
    if call.function is not None:
        data |= _spill(launch_facts(call, evaluated, profile), width, source)
    return _Read(call, evaluated, tiles, data)


def _kernel_keys(call: CodeCall, evaluated: Evaluated, tiles: AttentionTiles) -> dict[str, Any]:
    """The keys of the file's kernel."""
    kernel: dict[str, Any] = {
        "order": tiles.order,
        "start": "heavy-first" if tiles.heavy_first else "light-first",
        "direction": "descending" if tiles.descending else "ascending",
        "writes_lse": _writes_more(evaluated),
        "edge_q": _edge(evaluated, "Q"),
        "edge_k": _edge(evaluated, "K"),
        "matrix_unit": str(_unit(call)),
        "shared_memory_bytes": call.resources.shared_memory_bytes,
    }
    if tiles.reads_q_again:
        kernel["rereads_q"] = True
    if tiles.section_heads:
        kernel["section_heads"] = tiles.section_heads
    if tiles.persistent:
        kernel["scheduler"] = str(Scheduler.PERSISTENT)
    if call.resources.registers:
        kernel["registers"] = call.resources.registers
    return kernel


def _argument(evaluated: Evaluated, role: str) -> TensorArgument:
    """The tensor of that name. Raises InputError: there is none."""
    for tensor in evaluated.bound.tensors:
        if tensor.name.lower().removesuffix("_ptr").strip("_") in NAMES[role]:
            return tensor
    known = ", ".join(t.name for t in evaluated.bound.tensors)
    raise InputError(f"`arg` names no tensor {role} of attention; given: {known}")


def _heads(q: TensorArgument) -> tuple[int, int]:
    """(sequences, heads) of [batch, heads, tokens, head_dim], or of [heads, tokens, head_dim]."""
    outer = q.shape[:-2]
    return (outer[0], math.prod(outer[1:])) if len(outer) > 1 else (1, math.prod(outer))


def _stages(evaluated: Evaluated, step_bytes: int, shared_bytes: int) -> int:
    """Buffers of keys and values: as many as fit in shared memory where copies are asynchronous, else 1."""
    ahead = any(site.asynchronous for site in evaluated.sites)
    return max(1, min(16, shared_bytes // max(1, step_bytes))) if ahead else 1


def _sites_of(evaluated: Evaluated, role: str, mode: Mode) -> list[Site]:
    name = _argument(evaluated, role).name
    return [site for site in evaluated.sites if site.tensor == name and site.mode is mode]


def _edge(evaluated: Evaluated, role: str) -> str:
    past = any(site.past_end > 0 for site in _sites_of(evaluated, role, Mode.LOAD))
    return str(Edge.WHOLE if past else Edge.EXACT)


def _writes_more(evaluated: Evaluated) -> bool:
    """True where it stores something beside O: the log-sum-exp of its rows."""
    output = _argument(evaluated, "O").name
    return any(
        site.mode is Mode.STORE and site.tensor not in ("", output) for site in evaluated.sites
    )


def _unit(call: CodeCall) -> MatrixUnit:
    parts = {instruction.name for instruction in call.entry.instructions}
    return next((unit for word, unit in UNITS if word in parts), MatrixUnit.FP32)


def _spill(facts: KernelFacts, width: int, source: str) -> dict[str, Any]:
    """The row of spilled registers; empty where there are none."""
    spill = facts.spill
    if spill is None:
        return {}
    numbers = (
        "write_per_tile",
        "write_per_pair",
        "read_per_tile",
        "read_per_pair",
        "accesses_per_pair",
        "frame",
    )
    row = {name: round(float(getattr(spill, name)), 1) for name in numbers}
    return {"spill": [{"head_dim": width, **row, "frame": int(row["frame"]), "source": source}]}


def _plain(name: str) -> str:
    """A kernel's name in small letters and digits, parted by -."""
    letters = "".join(c if c.isalnum() and c.isascii() else "-" for c in name.lower())
    return "-".join(part for part in letters.split("-") if part) or "my-kernel"
