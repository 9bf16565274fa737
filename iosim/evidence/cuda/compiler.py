"""nvcc as a subprocess: one instantiation to one cubin, with its resource report, cached on disk."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from iosim.base.data import CACHE, cache_dir, data_dir
from iosim.base.errors import InputError
from iosim.base.records import asdict, dataclass, fields
from iosim.evidence.cuda.spec import Spec

_INCLUDE = re.compile(r'#include "([^"]+)"')
_REPORT = re.compile(
    r"Function properties for (?P<name>\w+)(?:(?!Function properties).)*?"
    r"(?P<frame>\d+) bytes stack frame, "
    r"(?P<stored>\d+) bytes spill stores, (?P<loaded>\d+) bytes spill loads(?:(?!Function properties).)*?"
    r"Used (?P<registers>\d+) registers(?:[^\n]*?(?P<shared>\d+) bytes smem)?",
    re.S,
)
"""What the assembler says of a kernel; a function that it calls has no line of what is used."""
_WARNING = re.compile(r"^ptxas warning\s*: *(.+)$", re.M)

OPTIONS = ("-std=c++17", "-O3", "-cubin", "-Xptxas", "-v,--warn-on-spills")


@dataclass(frozen=True)
class Resources:
    """What the assembler reports for one kernel. Bytes are per CTA for shared memory, else per thread."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_smem_bytes: int
    frame_bytes: int


@dataclass(frozen=True)
class Built:
    cubin: Path
    cc: str
    compiler: str
    resources: dict[str, Resources]
    warnings: tuple[str, ...] = ()
    """The assembler's, such as of registers that it spilled."""


def find_nvcc() -> Path:
    """nvcc from `$NVCC`, `$CUDA_HOME`, the PATH or /usr/local/cuda. Raises InputError where there is none."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    candidates = [
        os.environ.get("NVCC"),
        f"{home}/bin/nvcc" if home else None,
        shutil.which("nvcc"),
    ]
    candidates.append("/usr/local/cuda/bin/nvcc")
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    raise InputError(
        "no CUDA compiler: nvcc is neither in $NVCC, $CUDA_HOME/bin, the PATH nor /usr/local/cuda/bin"
    )


@functools.cache
def compiler_version(nvcc: Path) -> str:
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"release [\d.]+, V([\d.]+)", text)
    if match is None:
        raise InputError(f"{nvcc} does not answer --version as nvcc does")
    return match.group(1)


def architecture(cc: str) -> list[str]:
    """nvcc's options for a compute capability: `9.0`, or `9.0a` for one architecture's own instructions."""
    digits = cc.replace(".", "")
    return [f"-gencode=arch=compute_{digits},code=sm_{digits}"]


def source_files(name: str) -> list[Path]:
    directory = data_dir("kernels")
    files: list[Path] = []
    pending = [name]
    while pending:
        path = directory / pending.pop()
        if path in files:
            continue
        if not path.is_file():
            raise InputError(f"the CUDA source {path.name} is missing from {directory}")
        files.append(path)
        pending += _INCLUDE.findall(path.read_text())
    return files


def parse_report(text: str) -> dict[str, Resources]:
    counts = ("registers", "stored", "loaded", "shared", "frame")
    return {
        m["name"]: Resources(*(int(m[count] or 0) for count in counts))
        for m in _REPORT.finditer(text)
    }


def cubin_dir() -> Path:
    """The folder of compiled cubins: `$IOSIM_CACHE`, else `kernels` in iosim's cache; where that is switched off, or
    there is none, a folder that goes with this process."""
    folder = cache_dir()
    if folder is None:
        return Path(_folder_of_this_process().name)
    return folder if os.environ.get(CACHE, "").strip() else folder / "kernels"


@functools.cache
def _folder_of_this_process() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="iosim-kernels-")


def cache_key(spec: Spec, cc: str, compiler: str) -> str:
    digest = hashlib.sha256()
    for path in source_files(spec.source):
        # the source with all that it includes, then what else decides the machine code
        digest.update(path.name.encode() + path.read_bytes())
    digest.update(
        json.dumps([spec.source, spec.defines(), cc, compiler, OPTIONS], sort_keys=True).encode()
    )
    # A report of other fields than those that are read now is made anew.
    digest.update(" ".join(field.name for field in fields(Resources)).encode())
    return digest.hexdigest()[:32]


def compile_to(
    spec: Spec, cc: str, nvcc: Path, out: Path
) -> tuple[dict[str, Resources], tuple[str, ...]]:
    """Compiles to `out`; gives the resources by kernel, and the assembler's warnings. Raises InputError where nvcc
    refuses, with its first error."""
    source = data_dir("kernels") / spec.source
    macros = [f"-D{name}={value}" for name, value in spec.defines().items()]
    command = [str(nvcc), *OPTIONS, *architecture(cc), *macros]
    run = subprocess.run(
        [*command, str(source), "-o", str(out)], capture_output=True, text=True, check=False
    )
    if run.returncode != 0:
        errors = [
            line for line in (run.stderr + run.stdout).splitlines() if "error" in line.lower()
        ]
        raise InputError(
            f"nvcc refused {spec}: {errors[0].strip() if errors else f'exit code {run.returncode}'}"
        )
    report = run.stderr + run.stdout
    return parse_report(report), tuple(_WARNING.findall(report))


def build(spec: Spec, cc: str) -> Built:
    """The cubin of one instantiation for one compute capability, from the cache or compiled now. Raises InputError
    where the instantiation cannot exist there, or there is no compiler, or it refuses."""
    spec.check(cc)
    nvcc = find_nvcc()
    compiler = compiler_version(nvcc)
    directory = cubin_dir()
    cubin = directory / f"{cache_key(spec, cc, compiler)}.cubin"
    report = cubin.with_suffix(".json")
    if cubin.is_file() and report.is_file():
        record = json.loads(report.read_text())
        resources = {name: Resources(**values) for name, values in record["resources"].items()}
        return Built(cubin, cc, compiler, resources, tuple(record["warnings"]))
    directory.mkdir(parents=True, exist_ok=True)
    # compiled beside its place and moved there whole: processes that build the same one do not meet half a file
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        fresh = Path(scratch) / "kernel.cubin"
        resources, warnings = compile_to(spec, cc, nvcc, fresh)
        text = Path(scratch) / "kernel.json"
        by_kernel = {name: asdict(values) for name, values in resources.items()}
        text.write_text(json.dumps({"resources": by_kernel, "warnings": warnings}))
        # the report goes last: a cubin without one is compiled again
        fresh.replace(cubin)
        text.replace(report)
    return Built(cubin, cc, compiler, resources, warnings)
