"""Kernels by name: the catalog's TOML files, a user's own by their paths, and names that stand for a choice among
them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError, unknown_name
from iosim.base.registry import Registry
from iosim.base.schema import Problem, read_toml, refuse
from iosim.catalog.libraries import catalog_file
from iosim.hardware.profile import HardwareProfile, cc_text
from iosim.kernel.launch import Overhead
from iosim.kernel.options import built
from iosim.problem.attention import AttentionProblem

_HERE = Path(__file__).resolve().parent
CHECKED = _HERE / "checked.csv"
"""What each kernel was checked against, made of the recorded tables (benchmarks/checked.py)."""
COUNTED, BACKWARD = "bytes counted on", "backward's on"
"""Kinds of a kernel's bytes that stand together."""
TIMED, PUBLISHED_TIMES, BACKWARD_TIMED = "timed on", "published times on", "backward timed on"
"""Kinds of its times."""

Entry = Mapping[str, Any]


@cache
def entry_names() -> tuple[str, ...]:
    return tuple(sorted(p.stem for p in _HERE.glob("*.toml")))


OF_CODE = ("splits", "machine")
"""What a kernel that was read from code may say beside what a file does."""
OWN_NAMES = ("aliases", "backward_aliases", "in_models", "stands_in")
"""What a file does not take over from the one that it is like."""
ROWS = ("tile", "split_tile", "backward_tile", "spill", "backward_spill")
"""Lists of rows of which the first that fits is taken."""


def completed(data: dict[str, Any]) -> dict[str, Any]:
    """A file's entries over those of the catalog kernel that its `like` names: key by key in a table, and its rows
    before the other's, so that they are tried first."""
    base = data.get("like")
    if not isinstance(base, str) or base not in entry_names():
        return data
    merged: dict[str, Any] = {
        key: value for key, value in _read(base).items() if key not in OWN_NAMES
    }
    # Tables are merged key by key; lists of rows stand before the base's, as the first row that fits is
    # taken; everything else is replaced.
    for key, value in data.items():
        known = merged.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            merged[key] = {**known, **value}
        elif key in ROWS and isinstance(value, list) and isinstance(known, list):
            merged[key] = [*value, *known]
        else:
            merged[key] = value
    return merged


@cache
def _read(stem: str) -> Entry:
    data = completed(read_toml(_HERE / f"{stem}.toml", "catalog file"))
    wrong = catalog_file.problems(data)
    if not wrong and data["name"] != stem:
        wrong = [Problem("name", f"must be that of the file, {stem}")]
    refuse(wrong, f"{stem}.toml")
    return data


def on_gpu(data: Entry, profile: HardwareProfile) -> Entry:
    """The kernel that runs in place of a file's on GPUs before its first compute capability, where the file names one
    (`before`); else the file's own."""
    first = data["requires"].get("min_cc", 0)
    # A chain of files, generation by generation.
    if "before" in data and profile.cc < first:
        return on_gpu(entry(data["before"]), profile)
    return data


def in_model(name: str) -> str:
    """The kernel that a model of transformers runs where this one is asked for: as its file says (`in_models`), else
    itself."""
    stem = _aliases().get(fold(name), fold(name))
    return str(_read(stem).get("in_models", name)) if stem in entry_names() else name


Chooser = Callable[[AttentionProblem, HardwareProfile], tuple[str, str]]
"""To the name of a catalog kernel and the reason, one line."""

_CHOOSERS: Registry[str, Chooser] = Registry("choice")
_NAMES: list[str] = []


def fold(name: str) -> str:
    """A kernel's name as it is compared: lower case, words joined by hyphens."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def chooses(name: str, *aliases: str) -> Callable[[Chooser], Chooser]:
    """Register a choice under its name and aliases. Raises ValueError: one of them is taken."""

    def register(chooser: Chooser) -> Chooser:
        for word in (name, *aliases):
            _CHOOSERS.put(fold(word), chooser)
        _NAMES.append(name)
        return chooser

    return register


def choice_names() -> tuple[str, ...]:
    return tuple(_NAMES)


def is_choice(name: str) -> bool:
    return fold(name) in _CHOOSERS


@cache
def _checked() -> Mapping[str, Mapping[str, str]]:
    kinds: dict[str, dict[str, str]] = {}
    with CHECKED.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            kinds.setdefault(row["kernel"], {})[row["kind"]] = row["gpus"].replace(" ", ", ")
    return kinds


def checked(name: str) -> tuple[str, ...]:
    """What recorded tables hold of a kernel of the catalog, the strongest first: "bytes counted on h100-sxm; backward's
    on h100-sxm". Of one of which they hold nothing, that it was executed alone."""
    texts = {kind: f"{kind} {gpus}" for kind, gpus in _checked().get(name, {}).items()}
    backward = texts.pop(BACKWARD, None)
    both = (
        f"{text}; {backward}" if backward and kind == COUNTED else text
        for kind, text in texts.items()
    )
    return tuple(both) or ("execution only",)


def counted_on(name: str, backward: bool = False) -> tuple[str, ...]:
    """The GPUs whose counters were read of a kernel's forward, or of its backward: of a kernel of one's own, or of any
    name that the catalog lacks, none."""
    gpus = _checked().get(name, {}).get(BACKWARD if backward else COUNTED)
    return tuple(gpus.split(", ")) if gpus else ()


def was_timed(name: str, backward: bool = False) -> bool:
    """True where somebody counted or timed a catalog kernel's forward, or its backward, on some GPU."""
    kinds = (BACKWARD, BACKWARD_TIMED) if backward else (COUNTED, TIMED, PUBLISHED_TIMES)
    return any(kind in _checked().get(name, {}) for kind in kinds)


def chosen(name: str, problem: AttentionProblem, profile: HardwareProfile) -> tuple[str, str]:
    """(name of the kernel that the choice `name` takes, why)."""
    return _CHOOSERS[fold(name)](problem, profile)


def is_file(name: str) -> bool:
    """True where a kernel's name is the path of a file: it ends in .toml, or has a directory."""
    return name.strip().lower().endswith(".toml") or "/" in name


def check_file(path: str, subject: str = "kernel file") -> list[Problem]:
    """Everything that is wrong with a kernel's file, of one's own or in the catalog's folder. Raises InputError: it
    cannot be read as TOML.

    Args:
        subject: what the file is, for messages.
    """
    data = completed(read_toml(Path(path), subject))
    wrong = catalog_file.problems(data)
    in_catalog = Path(path).resolve().parent == _HERE.resolve()
    if not wrong and not in_catalog and data["name"] in entry_names():
        wrong = [
            Problem(
                "name", f"'{data['name']}' is the catalog's; a kernel of your own needs another"
            )
        ]
    return wrong


@lru_cache(maxsize=64)
def _read_own(path: str, changed_ns: int) -> Entry:
    refuse(check_file(path, "`kernel`"), f"`kernel` '{path}'")
    return completed(read_toml(Path(path), "`kernel`"))


def _own(path: str) -> Entry:
    try:
        changed = Path(path).stat().st_mtime_ns
    except (OSError, ValueError):
        changed = 0  # reading it says what is wrong
    # The time of change is part of the cache's key: an edited file is read anew.
    return _read_own(path, changed)


@cache
def _aliases() -> dict[str, str]:
    stem_of: dict[str, str] = {}
    for stem in entry_names():
        entry = _read(stem)
        for alias in (*entry.get("aliases", ()), *entry.get("backward_aliases", ())):
            if stem_of.get(fold(alias), stem) != stem:
                raise InputError(
                    f"catalog alias '{alias}' names both {stem_of[fold(alias)]} and {stem}"
                )
            stem_of[fold(alias)] = stem
    return stem_of


_READ: dict[str, Entry] = {}
"""Kernels that were read from code in this process, by name. Beside what a file says they may have `splits`, and
`machine`: a function that gives what a GPU's SMs play of their code."""


def keep_read(data: Entry) -> str:
    """The name by which a kernel that was read from code may be given as a kernel in this process. Raises
    InputError: it says what makes no sense, or its name is the catalog's."""
    refuse(catalog_file.problems({k: v for k, v in data.items() if k not in OF_CODE}), "`code`")
    name = fold(str(data["name"]))
    if name in entry_names() or name in _aliases():
        raise InputError(f"`name` '{name}' is the catalog's; a kernel of your own needs another")
    _READ[name] = data
    return name


def entry_name(name: str) -> str:
    """The catalog name for `name` or one of its aliases; of the path of a file, the name in it. Raises InputError: no
    such kernel, or a file that is none."""
    if is_file(name):
        return str(_own(name)["name"])
    folded = fold(name)
    if folded in entry_names() or folded in _READ:
        return folded
    if folded in _aliases():
        return _aliases()[folded]
    raise unknown_name("`kernel`", name, (*entry_names(), *choice_names()))


def entry(name: str) -> Entry:
    if is_file(name):
        return _own(name)
    known = entry_name(name)
    return _READ[known] if known in _READ else _read(known)


def overheads(data: Entry, table: str) -> tuple[Overhead, ...]:
    """What a file's kernel moves beside its tensors, in one of its tables."""
    return tuple(
        built(Overhead, {**row, "inferred_from": data["source"]}) for row in data.get(table, ())
    )


TILE_TABLES = ("tile", "split_tile", "backward_tile")


def kernel_answer(data: Mapping[str, Any]) -> str:
    requires = data["requires"]
    tiles = [
        f"{row['block_q']}x{row['block_k']}" for name in TILE_TABLES for row in data.get(name, ())
    ]
    distinct = list(dict.fromkeys(tiles))
    parts = [
        f"{data['name']} runs the {data['algorithm']} algorithm on {_gpus(requires)}, in "
        f"{', '.join(requires['dtypes'])}"
    ]
    if distinct:
        which = " by head_dim, pass and GPU" if len(distinct) > 1 else ""
        parts.append(f"tile{'s' if len(distinct) > 1 else ''} {', '.join(distinct)}{which}")
    inferred = [key for key in ("inferred", "assumed") if data.get(key)]
    parts.append(
        f"part of it is {' or '.join(inferred)}, as listed below"
        if inferred
        else "all of it is from its source"
    )
    return f"{'; '.join(parts)}."


def _gpus(requires: Mapping[str, Any]) -> str:
    low, high = requires.get("min_cc"), requires.get("max_cc")
    if low is None and high is None:
        return "any GPU"
    if low is not None and low == high:
        return f"cc {cc_text(low)} alone"
    first = "" if low is None else f"cc {cc_text(low)} and later"
    return f"{first}{'' if high is None else f' up to cc {cc_text(high)}'}".strip()
