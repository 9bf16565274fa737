"""Files of machine code as functions: a cubin, a fatbin, an object or shared object, Triton's or Inductor's cache, a
compiled Triton kernel, a listing.

    for function in read_module("kernel.cubin").functions:
        function.name, function.registers, function.frame_bytes, len(function.instructions)

Containers are opened by cuobjdump, machine code is listed by nvdisasm (`iosim.code.tools`); PTX that lies beside the
code comes with it. What a launch gives at run time (dynamic shared memory, threads) is known of Triton's kernels alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from iosim.base.errors import FEW_NAMES, InputError
from iosim.base.records import cached_property, dataclass, field, replace
from iosim.code.cubin import ELF_MAGIC, CubinReport, embedded_text, is_cubin, read_cubin
from iosim.code.listing import Instruction, control_words, functions_of, read_listing, write_listing
from iosim.code.tools import disassembled, embedded, embedded_ptx

WARP = 32
MOST_WITHOUT_ASKING = 49_152
"""Shared memory a CTA above which a launch must ask for it, and Triton's asks for the largest split as well."""
CACHE_SUFFIX, PTX_SUFFIX, FACTS_SUFFIX = ".cubin", ".ptx", ".json"
FATBIN_MAGIC = b"\x50\xed\x55\xba"
ENTRY = re.compile(r"\.entry\s+([\w$]+)")
HEAD_FIELDS = ("cc", "registers", "frame", "shared", "threads")
"""What the head of a written listing says, in its order."""


@dataclass(frozen=True)
class Function:
    """A kernel's machine code and what a CTA of it takes."""

    name: str
    cc: int
    registers: int
    frame_bytes: int
    """Bytes of a thread's stack frame."""
    shared_memory_bytes: int
    """Bytes of shared memory a CTA: declared in the code, and those given at launch where a compiler states them."""
    threads: int | None
    """Threads a CTA, where the code or the compiler states them."""
    instructions: tuple[Instruction, ...]
    ptx: str = ""
    """The PTX of its module, where it lies beside the code or inside it (-lineinfo); empty elsewhere."""
    source: str = ""
    """The file that it was read from."""
    prefers_shared: bool = False
    """Its launcher asks for the largest split of shared memory off L1, as Triton's and Inductor's do above 48 KiB
    a CTA (cuFuncSetCacheConfig in Triton's driver.c)."""

    @property
    def head(self) -> str:
        """The facts of a written listing's head."""
        values = (
            self.cc,
            self.registers,
            self.frame_bytes,
            self.shared_memory_bytes,
            self.threads or 0,
        )
        return " ".join(f"{name}={value}" for name, value in zip(HEAD_FIELDS, values, strict=True))

    @property
    def listing(self) -> str:
        """A listing that can be read without any tool."""
        return write_listing(self.name, self.head, self.instructions)


@dataclass(frozen=True)
class Module:
    """What one file, folder or compiled kernel holds."""

    source: str
    functions: tuple[Function, ...] = ()
    ptx: tuple[str, ...] = field(default=())
    """PTX texts."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of its kernels: of machine code, or of PTX where it holds no machine code."""
        if self.functions:
            return tuple(dict.fromkeys(f.name for f in self.functions))
        return tuple(dict.fromkeys(name for text in self.ptx for name in ENTRY.findall(text)))

    def function(self, entry: str | None = None, cc: int | None = None) -> Function:
        """The kernel named `entry`, or one whose name holds it; of several compute capabilities that of `cc`, or the
        nearest below it. Raises InputError: there is none, or more than one."""
        matching = [f for f in self.functions if entry is None or f.name == entry]
        if not matching:
            # C++ mangles names: a part of one is enough where no other kernel has it.
            matching = [f for f in self.functions if entry is not None and entry in f.name]
        if cc is not None and matching:
            running = [f for f in matching if f.cc <= cc and f.cc // 10 == cc // 10]
            if not running:
                have = ", ".join(dict.fromkeys(f"{f.cc / 10:.1f}" for f in matching))
                none = f"none for compute capability {cc / 10:.1f}"
                raise InputError(f"`code` {self.source} has {none}; accepted: {have}")
            # Code of a major version runs on its later minors, and the newest that runs is taken.
            best = max(f.cc for f in running)
            matching = [f for f in running if f.cc == best]
        if len({f.name for f in matching}) == 1:
            return matching[0]
        wanted = f"`entry` '{entry}'" if entry is not None else "`entry` is missing"
        more = f" and {len(self.names) - FEW_NAMES} more" if len(self.names) > FEW_NAMES else ""
        accepted = ", ".join(self.names[:FEW_NAMES]) + more
        raise InputError(
            f"{wanted}: {self.source} has {len(matching)} such kernels; accepted: {accepted or 'none'}"
        )


def read_module(source: Any, cc: int | None = None) -> Module:
    """The kernels of a file or folder of machine code (a path), of a cubin's bytes, or of a compiled Triton kernel.

    Args:
        source: a path, bytes, or an object with `asm` and `metadata` as Triton's CompiledKernel has them.
        cc: the compute capability whose code is wanted, of a file that holds code for several.

    Raises:
        InputError: it is nothing of these, or a tool that must read it is not there.
    """
    if hasattr(source, "asm"):
        return _compiled(source)
    if isinstance(source, bytes):
        return Module("machine code", tuple(_functions(source, "machine code")))
    path = Path(source)
    if path.is_dir():
        return _cache(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"`code` {path} cannot be read: {error.strerror or error}") from None
    if is_cubin(data):
        return _beside(path, data)
    if data[:4] in (ELF_MAGIC, FATBIN_MAGIC):
        return _container(path, cc)
    return _text(path, data)


def _text(path: Path, data: bytes) -> Module:
    """PTX, or a listing with the PTX that lies beside it under the same name."""
    text = data.decode("utf-8", errors="replace")
    if "\x00" not in text and ENTRY.search(text):
        return Module(path.name, ptx=(text,))
    ptx = _ptx_beside(path)
    functions = tuple(_listed(text, path.name, ptx)) if "\x00" not in text else ()
    if not functions:
        accepted = (
            "a cubin, fatbin, object, shared object, PTX, nvdisasm's listing, or Triton's cache"
        )
        raise InputError(f"`code` {path} is no machine code; accepted: {accepted}")
    return Module(path.name, functions, (ptx,) if ptx else ())


def _listed(text: str, label: str, ptx: str) -> Iterator[Function]:
    for name, head, listing in functions_of(text):
        facts = {
            key: int(value)
            for key, _, value in (word.partition("=") for word in head.split())
            if value.isdigit()
        }
        target = re.search(r"\.target\s+sm_(\d+)", text)
        cc = facts.get("cc", int(target[1]) if target else 0)
        yield Function(
            name,
            cc,
            facts.get("registers", 0),
            facts.get("frame", 0),
            facts.get("shared", 0),
            facts.get("threads") or None,
            read_listing(listing),
            ptx,
            label,
        )


def _functions(data: bytes, label: str, ptx: str = "") -> Iterator[Function]:
    """The kernels of a cubin."""
    reports, ptx = read_cubin(data), ptx or embedded_text(data)
    listed = {name: text for name, _, text in functions_of(disassembled(data))}
    for name, report in reports.items():
        if name in listed:
            yield _function(name, report, listed[name], ptx, label)


def _function(name: str, report: CubinReport, listing: str, ptx: str, label: str) -> Function:
    return Function(
        name,
        report.cc,
        report.registers,
        report.frame_bytes,
        report.shared_memory_bytes,
        report.threads,
        read_listing(listing, control_words(report.code)),
        ptx,
        label,
    )


def _ptx_beside(path: Path) -> str:
    """The PTX under the same name; empty where there is none."""
    file = path.with_suffix(PTX_SUFFIX)
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _beside(path: Path, data: bytes) -> Module:
    """A cubin, with the PTX and the compiler's facts that lie beside it under the same name, as Triton's cache has
    them."""
    ptx, facts_file = _ptx_beside(path), path.with_suffix(FACTS_SUFFIX)
    functions = tuple(_functions(data, path.name, ptx))
    if facts_file.is_file():
        try:
            facts = json.loads(facts_file.read_text(encoding="utf-8"))
        except ValueError:
            facts = {}
        if isinstance(facts, dict):
            functions = tuple(_with_facts(f, facts) for f in functions)
    texts = dict.fromkeys(f.ptx for f in functions if f.ptx)
    return Module(path.name, functions, (ptx,) if ptx else tuple(texts))


def _with_facts(function: Function, facts: Mapping[str, Any]) -> Function:
    """With what Triton's metadata says: all of a CTA's shared memory, and its warps."""
    shared, warps = facts.get("shared"), facts.get("num_warps")
    if isinstance(shared, int):
        whole = max(shared, function.shared_memory_bytes)
        asks = shared > MOST_WITHOUT_ASKING
        function = replace(function, shared_memory_bytes=whole, prefers_shared=asks)
    if isinstance(warps, int) and function.threads is None:
        function = replace(function, threads=WARP * warps)
    return function


def _container(path: Path, cc: int | None) -> Module:
    """The cubins of a fatbin, an object or a shared object; a kernel that stands there twice is taken once."""
    by_name: dict[tuple[str, int], Function] = {}
    for _, cubin in embedded(path, cc):
        for function in _functions(cubin, path.name):
            if function.instructions:
                by_name.setdefault((function.name, function.cc), function)
    ptx = tuple(embedded_ptx(path, cc))
    if not by_name and not ptx:
        raise InputError(f"`code` {path} holds no machine code of NVIDIA's GPUs")
    return Module(path.name, tuple(by_name.values()), ptx)


def _cache(path: Path) -> Module:
    """All kernels of Triton's cache (`TRITON_CACHE_DIR`), or of Inductor's."""
    modules = [_beside(file, file.read_bytes()) for file in sorted(path.rglob(f"*{CACHE_SUFFIX}"))]
    if not modules:
        raise InputError(f"`code` {path} holds no {CACHE_SUFFIX} file, as Triton's cache does")
    functions, ptx = (
        tuple(item for m in modules for item in getattr(m, name)) for name in ("functions", "ptx")
    )
    return Module(path.name, functions, ptx)


def _compiled(compiled: Any) -> Module:
    """A CompiledKernel of Triton."""
    asm = compiled.asm
    ptx, cubin = asm.get("ptx", ""), asm.get("cubin")
    name = str(getattr(compiled.metadata, "name", "triton"))
    if not isinstance(cubin, bytes):
        raise InputError(f"the compiled kernel {name} holds no cubin")
    facts = {n: getattr(compiled.metadata, n, None) for n in ("shared", "num_warps")}
    functions = tuple(_with_facts(f, facts) for f in _functions(cubin, name, str(ptx)))
    return Module(name, functions, (str(ptx),) if ptx else ())
