"""A bundle: one small file of a calibration that someone can send, and what takes it in.

It holds the raw numbers of the microbenchmarks, curves and counters among them, and the profile made of them. Who takes
it in does not trust the profile in it: it is made anew from the raw numbers, and both must be valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from iosim.base.data import profiles_dir
from iosim.base.errors import InputError
from iosim.base.files import read_object, read_text, write_together
from iosim.base.schema import one_line, parse_toml
from iosim.base.version import __version__
from iosim.evidence.measure.calibrate import check_schema, sound
from iosim.evidence.measure.fit import misses_by_time
from iosim.evidence.measure.profile_text import base_profile, profile_text
from iosim.hardware.profile import HardwareProfile, added_profiles
from iosim.hardware.profile_file import missing_for_predictions, parse

SCHEMA = 1
MAX_BYTES = 4 << 20
ACCEPTED = "what iosim calibrate --bundle writes, or a profile that ends in .toml"
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)
RESERVED = re.compile(r"con|prn|aux|nul|(com|lpt)\d", re.IGNORECASE)
"""Names of devices, which Windows has no files of."""


def bundle(raw: Mapping[str, Any], profile: str) -> dict[str, Any]:
    misses = [list(point) for point in misses_by_time(sound(raw, []))]
    about = {
        "iosim_bundle": SCHEMA,
        "iosim": __version__,
        "gpu": raw.get("gpu"),
        "l2_misses_by_time": misses,
    }
    return {**about, "raw": dict(raw), "profile": profile}


def read_bundle(path: str | Path) -> dict[str, Any]:
    where = f"`file` '{path}'"
    whole = read_object(path, where, ACCEPTED, MAX_BYTES)
    if whole.get("iosim_bundle") != SCHEMA:
        raise InputError(f"{where} is no bundle of version {SCHEMA}; accepted: {ACCEPTED}")
    if not isinstance(whole.get("raw"), dict) or not isinstance(whole.get("profile"), str):
        raise InputError(f"{where} lacks its raw numbers or its profile; accepted: {ACCEPTED}")
    check_schema(whole["raw"], where)
    return whole


def add(path: str | Path, name: str | None = None, *, replace: bool = False) -> tuple[str, Path]:
    """Take a bundle or a profile file among the user's own profiles, whole or not at all; gives its name and place. A
    bundle's profile is made anew from its raw numbers, which are kept beside it. Raises InputError where the file or
    the profile in it is not valid, predictions would miss a number, or the name is taken. `name`: in place of the one
    in the file. `replace`: where there is one of that name, put this in its place."""
    if str(path).lower().endswith(".toml"):
        text, raw = read_text(path, f"`file` '{path}'", ACCEPTED, MAX_BYTES), None
    else:
        whole = read_bundle(path)
        raw = whole["raw"]
        profile_name = parse_toml(whole["profile"], f"the profile in '{path}'").get("name", "")
        text = profile_text(raw, checked_name(name or str(profile_name)))
    values = parse_toml(text, f"'{path}'")
    profile = HardwareProfile.from_dict(values, f"'{path}'")
    missing = missing_for_predictions(parse(values).values)
    if missing:
        raise InputError(
            f"'{path}' lacks what predictions need: {missing[0]}; 'iosim profiles check' lists all of it"
        )
    place = _place(checked_name(name or profile.name), replace)
    # the name in the file must be that of the file, or no command would find it
    if place.stem != profile.name:
        text = re.sub(r"(?m)^name\s*=.*$", f'name = "{place.stem}"', text, count=1)
    files = {place: text}
    if raw is not None:
        files[place.with_suffix(".json")] = json.dumps(raw, indent=1) + "\n"
    write_together(files)
    return place.stem, place


def checked_name(name: str) -> str:
    """A profile's name as it is kept: without the ending of a file. Raises InputError where it is none, or one that
    a file cannot have everywhere."""
    clean = re.sub(r"(\.(toml|json))+$", "", name, flags=re.IGNORECASE)
    if (
        not NAME.fullmatch(clean)
        or clean.endswith(".")
        or RESERVED.fullmatch(clean.partition(".")[0])
    ):
        accepted = "letters, digits, dots and dashes, such as my-gpu"
        raise InputError(
            f"`name` '{one_line(name, 80)}' is no name of a profile; accepted: {accepted}"
        )
    return clean


def _place(name: str, replace: bool) -> Path:
    """Where the profile of that name goes. Raises InputError where the name is taken, or there is no place."""
    folder = profiles_dir()
    if folder is None:
        raise InputError(
            "there is no home directory for profiles; accepted: a directory in IOSIM_PROFILES"
        )
    existing = {stem.lower(): path for stem, path in added_profiles().items()}.get(name.lower())
    if existing is None:
        if shipped := base_profile(name):
            raise InputError(
                f"`name` '{name}' is the shipped profile {shipped.name}; accepted: another name"
            )
    elif not replace:
        raise InputError(
            f"`name` '{name}' is taken by '{existing}'; accepted: another name, or `replace=True`"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{error.strerror}; accepted: a directory in IOSIM_PROFILES"
        raise InputError(f"'{folder}' cannot be made: {why}") from None
    return existing or folder / f"{name}.toml"
