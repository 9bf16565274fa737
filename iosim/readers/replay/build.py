"""Compiles the replay engine: for a wheel or an editable install, and again where its sources have changed since.

    python iosim/readers/replay/build.py FILE [FLAG ...]    an engine with other flags, for IOSIM_ENGINE=FILE
    python iosim/readers/replay/build.py --wasm             the engines for browsers, which are committed: engine.wasm,
                                                            and engine.side.wasm for a Python that runs in one

Needs nothing but Python's standard library: the build of a wheel runs this file where iosim is not installed yet. A
compiled engine carries a mark of its sources, so that one of other sources is never taken for it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ENGINE = FOLDER / "_engine.so"
FLAGS = ("-O3", "-std=c11", "-ffp-contract=off", "-shared", "-fPIC")
COMPILER_PACKAGE = "ziglang"
"""A C compiler as a Python package, for where there is no other."""
ZIG_FLAGS = ("-mcpu=baseline", "-fno-sanitize=undefined", "-s")
"""Zig compiles for the very CPU it runs on, with checks and debug information, unless it is told not to."""
WASM = FOLDER / "engine.wasm"
"""The engine for browsers. It imports `env.iosim_tick` alone, which is told how many work tiles are done."""
WASM_FLAGS = (
    "-mexec-model=reactor",
    "-mcpu=generic+simd128",
    "-O3",
    "-std=c11",
    "-ffp-contract=off",
    *(
        f"-Wl,--export={name}"
        for name in ("malloc", "iosim_sample", "iosim_place", "iosim_replay", "iosim_sources")
    ),
)
SIDE = FOLDER / "engine.side.wasm"
"""The engine for a Python in a browser (Pyodide), which opens it as any other: a library that shares Python's memory."""
SIDE_FLAGS = (
    "-mcpu=generic+simd128",
    "-O3",
    "-std=c11",
    "-ffp-contract=off",
    "-fPIC",
    "-U__wasm__",  # no import to tell of progress by: Python's `done` is looked at
    "-c",
)
SIDE_LINK = (
    "-shared",
    "--experimental-pic",
    "--no-entry",
    "--unresolved-symbols=import-dynamic",  # malloc and its kin are those of Python's C library
    "--strip-all",
    *(
        f"--export=iosim_{name}"
        for name in (
            *("replay", "replay_recorded", "place", "access"),
            *("sample", "page_places", "sizes", "sources"),
        )
    ),
)
TRIAL = "#include <stdlib.h>\nvoid *trial(void) { return malloc(1); }\n"


class BuildError(RuntimeError):
    """The engine could not be compiled; the message says why, in one line."""


def mark(folder: Path = FOLDER) -> bytes:
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for source in sorted((*folder.glob("*.c"), *folder.glob("*.h"))):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return b"iosim-engine-sources:" + digest.hexdigest()[:32].encode() + b";"


def is_current(engine: Path, folder: Path = FOLDER) -> bool:
    try:
        return mark(folder) in engine.read_bytes()
    except OSError:
        return False


def system_compiler() -> list[str] | None:
    """The C compiler at hand that makes a shared library: CC's, Python's own, cc, gcc or clang."""
    import shutil
    import sysconfig

    # Python's own compiler may be named but absent, so each candidate compiles a trial first.
    configured = str(sysconfig.get_config_var("CC") or "").split()[:1]
    for name in dict.fromkeys(
        (*os.environ.get("CC", "").split()[:1], *configured, "cc", "gcc", "clang")
    ):
        path = shutil.which(name)
        if path is not None and _works([os.path.abspath(path)]):
            return [os.path.abspath(path)]
    return None


def compiler(machine: str = "") -> list[str] | None:
    """A C compiler: the system's, or the one that comes as a package where that is installed; for another `machine`, as
    Zig names it (`x86_64-windows-gnu`), the package's alone."""
    command = None if machine else system_compiler()
    if command is None and find_spec(COMPILER_PACKAGE) is not None:
        command = [sys.executable, "-m", COMPILER_PACKAGE, "cc", *ZIG_FLAGS]
        command += ["-target", machine] if machine else []
    return command


def compile_engine(
    target: Path = ENGINE, folder: Path = FOLDER, flags: tuple[str, ...] = (), machine: str = ""
) -> None:
    """Compiles the sources in `folder` to `target`, which appears whole or not at all. Raises BuildError: no compiler
    (for that machine), nowhere to write, or sources that do not compile."""
    _compile(target, folder, (*FLAGS, *flags), machine)


def compile_wasm(target: Path = WASM, folder: Path = FOLDER) -> None:
    """Compiles the engine for browsers to `target`, which appears whole or not at all. Raises BuildError: no compiler,
    nowhere to write, or sources that do not compile."""
    _compile(target, folder, WASM_FLAGS, "wasm32-wasi")


def compile_side(target: Path = SIDE, folder: Path = FOLDER) -> None:
    """Compiles the engine for a Python in a browser to `target`, as `compile_wasm` does."""
    _compile(target, folder, SIDE_FLAGS, "wasm32-wasi", SIDE_LINK)


def _compile(
    target: Path, folder: Path, flags: tuple[str, ...], machine: str, link: tuple[str, ...] = ()
) -> None:
    """`link`: flags of the linker of a library that shares the memory of who opens it."""
    if not os.access(target.parent, os.W_OK):
        raise BuildError(f"{target.parent} cannot be written to")
    command = compiler(machine)
    if command is None:
        raise BuildError(
            f"there is no C compiler{f' for {machine}: install {COMPILER_PACKAGE}' if machine else ''}"
        )
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        # Compiled in a folder of its own and renamed at the end: two processes that compile at once
        # both leave a whole engine.
        part = target.with_name(f".{target.name}.{os.getpid()}")
        named = f'-DIOSIM_SOURCES="{mark(folder).decode().partition(":")[2].rstrip(";")}"'
        try:
            error = _run(
                [*command, *flags, named, "-o", ENGINE.name, str(folder / "engine.c")], scratch
            )
            if error is None and link:
                object_file = "engine.o"
                Path(scratch, ENGINE.name).rename(Path(scratch, object_file))
                linker = [sys.executable, "-m", COMPILER_PACKAGE, "wasm-ld", *link]
                error = _run([*linker, object_file, "-o", ENGINE.name], scratch)
            if error is not None:
                raise BuildError(f"it did not compile: {error}")
            shutil.copyfile(Path(scratch, ENGINE.name), part)
            part.chmod(0o644)
            part.replace(target)
        except OSError as failure:
            raise BuildError(str(failure)) from None
        finally:
            part.unlink(missing_ok=True)


def _works(command: list[str]) -> bool:
    """True where a compiler finds the C library's headers and links with it."""
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "trial.c")
        source.write_text(TRIAL)
        return (
            _run(
                [*command, "-shared", "-fPIC", "-o", str(source.with_suffix(".so")), str(source)],
                scratch,
            )
            is None
        )


def _run(command: list[str], scratch: str) -> str | None:
    """Runs a compiler in `scratch`, so that what it makes names no folder of this machine and nothing else stays; the
    first line of what went wrong, or None."""
    import subprocess

    caches = {"ZIG_GLOBAL_CACHE_DIR": scratch, "ZIG_LOCAL_CACHE_DIR": scratch}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            cwd=scratch,
            env={**caches, **os.environ},
        )
    except OSError as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return next(
        (line for line in lines if "error" in line),
        lines[0] if lines else f"exit code {done.returncode}",
    )


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("python iosim/readers/replay/build.py FILE [FLAG ...] or --wasm")
    try:
        if sys.argv[1] == "--wasm":
            compile_wasm()
            compile_side()
        else:
            compile_engine(Path(sys.argv[1]).absolute(), flags=tuple(sys.argv[2:]))
    except BuildError as problem:
        sys.exit(f"iosim: the replay engine: {problem}")
