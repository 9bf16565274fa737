"""The explorer as a static folder that computes every answer in the page: iosim itself, its engine as WebAssembly, and
the Python that runs both in a browser (Pyodide).

The Python is not iosim's to ship: it is copied from a folder that the user names, and must be the very release that the
engine is built for. Nothing is fetched, neither here nor, from elsewhere, by the page.
"""

from __future__ import annotations

import hashlib
import io
import json
import tomllib
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.base.files import write_whole
from iosim.readers.replay import build
from iosim.show.template import STATIC
from iosim.studies.explore.page import attention_page, engine, place_of, question_page
from iosim.studies.requests import ExploreRequest

PACKAGE = Path(build.__file__).resolve().parents[2]
RUNTIME = "python"
"""The folder of Pyodide's files in the one that is written."""
SHIPPED = {"hardware_profiles": (".toml",), "kernels": (".csv", ".toml")}
"""Data beside the package that predictions read, by the endings of their files."""
LEFT_OUT = (".pyc", ".so", ".wasm")
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every file in the archive, so that equal sources make equal bytes."""


@cache
def runtime() -> dict[str, Any]:
    """The release of Pyodide that the folder is made with: its version, its Python, and the sha256 of its files."""
    return tomllib.loads(Path(__file__).with_name("runtime.toml").read_text(encoding="utf-8"))


def runtime_files(folder: str | Path) -> dict[str, bytes]:
    """The files of Pyodide in a folder. Raises InputError: one is missing, or of another release."""
    files: dict[str, bytes] = {}
    accepted = f"a folder of Pyodide {runtime()['info']['version']} with its NumPy"
    for name, digest in runtime()["files"].items():
        try:
            files[name] = (Path(folder) / name).read_bytes()
        except OSError as error:
            reason = f"{name}: {error.strerror or error}"
            raise InputError(f"`runtime` '{folder}': {reason}; accepted: {accepted}") from None
        if hashlib.sha256(files[name]).hexdigest() != digest:
            raise InputError(
                f"`runtime` '{folder}': {name} is of another release; accepted: {accepted}"
            )
    return files


def lock() -> str:
    """What Pyodide reads of its packages: NumPy alone, whose bytes it checks again."""
    numpy = runtime()["numpy"]
    numpy = numpy | {"sha256": runtime()["files"][numpy["file_name"]]}
    return json.dumps({"info": runtime()["info"], "packages": {"numpy": numpy}})


def archive() -> bytes:
    """iosim as a zip file that a Python in a browser unpacks: the package, its data, and the engine for such a Python.
    Equal sources give equal bytes."""
    engine_for_python = engine(of_python=True)
    contents = {
        f"{PACKAGE.name}/{path.relative_to(PACKAGE).as_posix()}": path
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in LEFT_OUT and "_data" not in path.parts
    }
    for name, endings in SHIPPED.items():
        folder = data_dir(name)
        contents |= {
            f"{PACKAGE.name}/_data/{name}/{path.relative_to(folder).as_posix()}": path
            for path in folder.rglob("*")
            if path.is_file() and path.suffix in endings
        }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive_file:
        for name, path in sorted(contents.items()):
            archive_file.writestr(zipfile.ZipInfo(name, EPOCH), path.read_bytes(), 8)
        place = build.ENGINE.relative_to(PACKAGE.parent).as_posix()
        archive_file.writestr(zipfile.ZipInfo(place, EPOCH), engine_for_python, 8)
    return packed.getvalue()


def write_site(request: ExploreRequest, setup: Mapping[str, Any]) -> Path:
    """Write the folder; its page, index.html, comes last. `setup`: what the page of the question offers. Raises
    InputError: as `place_of`, or no Pyodide of the right release."""
    place = place_of(request)
    files: dict[str, bytes | str] = {
        f"{RUNTIME}/{name}": content for name, content in runtime_files(request.runtime).items()
    }
    files[f"{RUNTIME}/pyodide-lock.json"] = lock()
    files["iosim.zip"] = archive()
    files["worker.js"] = (STATIC / "explore" / "worker.js").read_text(encoding="utf-8")
    files["attention.html"] = attention_page(request, "python")
    files["index.html"] = question_page(setup)
    try:
        (place.parent / RUNTIME).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"`path` '{request.out}' cannot be made: {error.strerror}; accepted: a folder"
        ) from None
    for name, content in files.items():
        write_whole(place.parent / name, content)
    return place
