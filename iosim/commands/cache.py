"""`iosim cache show | clear`: the results of replays that are kept between runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.base.places import CACHE, cache_dir
from iosim.base.units import bytes_text
from iosim.commands import common
from iosim.commands.parser import CommandParser

if TYPE_CHECKING:
    from iosim.prediction.cache import CacheState


def add_options(parser: CommandParser) -> None:
    show = "where they are kept, how many there are and how many bytes they take"
    common.add_actions(parser, ("show", show, "", "", common.FORMATS), ("clear", "drop all of them", "", "", ()))


def run(args: argparse.Namespace) -> int:
    return {"show": _show, "clear": _clear}[args.action](args)


def _show(args: argparse.Namespace) -> int:
    from iosim.prediction.cache import MOST_BYTES, replay_cache

    cache = replay_cache()
    state = None if cache is None else cache.state()
    row: dict[str, Any] = {
        "place": None if state is None else str(state.place),
        "replays": 0 if state is None else state.results,
        "current": 0 if state is None else state.current,
        "bytes": 0 if state is None else state.bytes,
        "most_bytes": MOST_BYTES,
    }
    text = _off() if state is None else f"{_told(state)}\nat most {bytes_text(MOST_BYTES)} are kept\n"
    return common.tell(args, None, json=lambda: {"cache": row}, rows=lambda: [row], table=lambda: text)


def _clear(args: argparse.Namespace) -> int:
    from iosim.prediction.cache import replay_cache

    cache = replay_cache()
    if cache is None:
        common.emit(_off(), None)
        return 0
    state = cache.state()
    try:
        cache.clear()
    except OSError as error:
        raise InputError(f"{cache.place} cannot be removed: {error.strerror}") from None
    common.emit(f"dropped: {_told(state)}\n", None)
    return 0


def _told(state: CacheState) -> str:
    replays = "1 replay" if state.results == 1 else f"{state.results:,} replays"
    return f"{replays}, {state.current:,} of this version of iosim, {bytes_text(state.bytes)} in {state.place}"


def _off() -> str:
    why = f"{CACHE} is off" if cache_dir() is None else "there is no place for it"
    return f"no replays are kept: {why}\n"
