"""The models that ship: a TOML file each in `presets/`, with the keys of its config.json that tell of attention."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

PLACE = Path(__file__).parent / "presets"
DEFAULTS = Path(__file__).parent / "defaults.toml"


@cache
def preset(name: str) -> dict[str, Any]:
    """A preset's file: `title`, `aliases`, `source` and `config`."""
    return tomllib.loads((PLACE / f"{name}.toml").read_text(encoding="utf-8"))


@cache
def preset_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in PLACE.glob("*.toml")))


@cache
def all_names() -> dict[str, str]:
    """Every name in lower case, other names included -> the preset's."""
    names = {name: name for name in preset_names()}
    return names | {alias.lower(): name for name in preset_names() for alias in preset(name).get("aliases", ())}


@cache
def class_defaults() -> dict[str, Any]:
    """What a config.json means where it leaves a key out: `types` by model_type, and the `encoders` among them."""
    return tomllib.loads(DEFAULTS.read_text(encoding="utf-8"))
