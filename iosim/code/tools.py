"""NVIDIA's tools that read machine code: nvdisasm and cuobjdump, of CUDA or of the Triton wheel. No GPU is needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from iosim.base.errors import InputError

LONGEST_S = 300.0
"""How long a tool may take; a library of a gigabyte is read in minutes."""


def candidates(name: str) -> Iterator[Path]:
    """Where a tool may be: `$NVDISASM` (or `$CUOBJDUMP`), CUDA's folder, the PATH, the Triton wheel."""
    if stated := os.environ.get(name.upper()):
        yield Path(stated)
    if home := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        yield Path(home) / "bin" / name
    if on_path := shutil.which(name):
        yield Path(on_path)
    yield Path("/usr/local/cuda/bin") / name
    try:
        triton = find_spec("triton")
    except (ImportError, ValueError):
        triton = None
    for folder in (triton.submodule_search_locations or ()) if triton else ():
        yield Path(folder) / "backends" / "nvidia" / "bin" / name


def find_tool(name: str) -> Path:
    """The tool of that name. Raises InputError, one line: there is none."""
    for candidate in candidates(name):
        if os.access(candidate, os.X_OK):
            return candidate
    raise InputError(
        f"{name} is not found, which reads machine code; it is part of CUDA and of the Triton wheel "
        f"(`pip install triton`), and ${name.upper()} may say where it is"
    )


def run_tool(name: str, *arguments: str | Path, folder: Path | None = None) -> str:
    """What a tool prints. Raises InputError: it is not there, or refuses."""
    command = [find_tool(name), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LONGEST_S, cwd=folder
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{name} does not run: {error}") from None
    if done.returncode:
        message = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise InputError(f"{name} cannot read the machine code: {message}")
    return done.stdout


def disassembled(cubin: bytes) -> str:
    """The listing of a cubin by nvdisasm, with lines of the source and of the PTX where it has them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "code.cubin"
        file.write_bytes(cubin)
        return run_tool("nvdisasm", "-ndf", "-c", "-g", "-gp", file)


def assembled(ptx: str, cc: int) -> bytes:
    """The cubin that ptxas makes of PTX, with the PTX's lines beside its instructions. PTX for one architecture alone
    (sm_90a) is assembled for that; other PTX for `cc`. Raises InputError: ptxas is not there, or refuses."""
    target = re.search(r"^\s*\.target\s+(sm_\d+[af]?)", ptx, re.M)
    architecture = target[1] if target else ""
    with tempfile.TemporaryDirectory() as folder:
        text, cubin = Path(folder) / "code.ptx", Path(folder) / "code.cubin"
        text.write_text(ptx, encoding="utf-8")
        arch = architecture if architecture.endswith(("a", "f")) else f"sm_{cc}"
        run_tool("ptxas", f"-arch={arch}", "-lineinfo", "-o", cubin, text)
        return cubin.read_bytes()


def embedded(file: Path, cc: int | None = None) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of the cubins in a fatbin, an object or a shared object, of one compute capability or of all."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = [] if cc is None else ["-arch", f"sm_{cc}"]
        run_tool("cuobjdump", *chosen, "-xelf", "all", file.resolve(), folder=Path(folder))
        for cubin in sorted(Path(folder).iterdir()):
            yield cubin.name, cubin.read_bytes()


def embedded_ptx(file: Path, cc: int | None = None) -> Iterator[str]:
    """The PTX in such a file."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = [] if cc is None else ["-arch", f"sm_{cc}"]
        run_tool("cuobjdump", *chosen, "-xptx", "all", file.resolve(), folder=Path(folder))
        for ptx in sorted(Path(folder).iterdir()):
            yield ptx.read_text(encoding="utf-8", errors="replace")
