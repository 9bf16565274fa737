"""A user's own defaults: the GPU of IOSIM_GPU, and what a settings file says. They stand in for options that are not
typed, and only where a command's own default is the usual one.

    # ~/.config/iosim/config.toml, or the file that IOSIM_CONFIG names
    [defaults]
    gpu = "h100"
    dtype = "bf16"
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError, unknown_name
from iosim.commands.options import ALIASES, USUAL_GPU

GPU = "IOSIM_GPU"
NAMES = ("gpu", "kernel", "dtype", "batch", "heads", "kv-heads", "head-dim")
"""Options that may have a default of one's own."""


def settings(place: str) -> dict[str, str]:
    """The defaults of the environment and of the settings file at `place`, by option. Raises InputError: a file that is
    none, or a name that may have no default."""
    defaults: dict[str, Any] = {}
    path = Path(place)
    if path.is_file():
        from iosim.base.schema import read_toml

        data = read_toml(path, "settings file")
        for name in data:
            if name != "defaults":
                raise unknown_name(f"settings file '{path}': table", name, ["defaults"])
        defaults = dict(data.get("defaults", {}))
        for name, value in defaults.items():
            if name not in NAMES:
                raise unknown_name(f"settings file '{path}': defaults", name, NAMES)
            if isinstance(value, bool) or not isinstance(value, str | int | list):
                raise InputError(
                    f"settings file '{path}': {name} {value!r}; accepted: a text, a number or a list"
                )
    if os.environ.get(GPU):
        defaults["gpu"] = os.environ[GPU]
    return {
        name: ",".join(map(str, v)) if isinstance(v, list) else str(v)
        for name, v in defaults.items()
    }


def added(words: Sequence[str], parser: argparse.ArgumentParser, place: str) -> list[str]:
    """The words that a user's defaults add to those of a command with this parser: for every option that is not typed.
    A command whose GPU is another by default, such as the one that a table was measured on, takes none."""
    gpu = parser._option_string_actions.get("--gpu")
    # `validate` has the GPU of its table, `formula` none: a personal GPU there would answer
    # another question.
    if gpu is None or gpu.default not in (USUAL_GPU, [USUAL_GPU]):
        return []
    typed = {word.partition("=")[0] for word in words}
    added_words: list[str] = []
    for name, value in settings(place).items():
        action = parser._option_string_actions.get(f"--{name}")
        # An alias that was typed counts as the option, too, or the default would contradict it.
        spellings = () if action is None else (*action.option_strings, ALIASES.get(f"--{name}", ""))
        if action is not None and not typed.intersection(spellings):
            added_words.append(f"--{name}={value}")
    return added_words
