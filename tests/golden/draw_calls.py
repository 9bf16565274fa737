"""Draws calls of all commands at random and adds those that do what no call before them does to drawn_calls.txt.

    python tests/golden/draw_calls.py --seconds 900 --seed 1      needs Python 3.12 or later
    python tests/golden/make_studies.py drawn                     then records what they print

A call is another one with options more, fewer or changed: values come from the options' own choices, from calls in docs
and tests, and from SIZES, which has both sides of most borders. It is kept where it runs a line of the package that no
call before it ran, or computes a value that a planted change alters for the first time (tests/support/altered.py).
Left out are calls that take long, and those whose words name all kernels, GPUs or models: one more of them would move
what is recorded.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "golden")]

import altered  # noqa: E402
import measured  # noqa: E402

MOST_S, MOST_CPU_S = 8, 2.0
"""What a call may take, and what one that is kept may."""
SKIPPED = {"explore", "completion", "cache"}
"""Commands that start something, or print what is of a machine."""
WRITES = {"--out", "--html", "--jobs", "--help", "--dask", "--interactive", "--runtime", "-o"}
SIZES = {
    "--seq-len": "1 7 64 65 127 128 129 200 512 1k 1000 2k 2049 4k",
    "--seq-len-k": "1 64 128 129 513 1k 2k 4k 8k",
    "--heads": "1 2 3 4 8 12 16 32",
    "--kv-heads": "1 2 4 8",
    "--head-dim": "32 40 64 72 80 96 128 160 192 256 512",
    "--head-dim-v": "64 128 512",
    "--batch": "1 2 3 4 8 16",
    "--window": "1 63 64 128 200 1000",
    "--window-right": "0 1 64 100",
    "--layers": "1 2 3 6",
    "--context": "1k 2k 1k,4k 16k 100",
    "--num-gpus": "2 3 4 8 16",
    "--splits": "1 2 3 7",
    "--page-size": "1 16 64 100 256",
    "--dropout": "0 0.1 0.5",
    "--softcap": "30 50",
    "--seq-lens": "100,300,50 1,1,512 128,128",
    "--seq-lens-k": "200,300,500 1k,4k,512",
    "--tile": "64x64 128x128 64x128 32x32 128x64 256x64 16x16",
    "--warps": "1 2 4 8",
    "--stages": "1 2 3",
    "--tensor-parallel": "1 2 4 8",
}
OF_ALL = re.compile(r"is not known|counts within|no kernel|none of the")
"""Words of answers that name or count all kernels, GPUs or models."""
GROW = re.compile(r"(profiles|kernels|models|cache) list|^(help|schema)\b|--version")

Options = dict[str, argparse.Action]


class Slow(BaseException):
    """A call took too long."""


def values_in_use() -> tuple[dict[str, set[str]], list[str]]:
    """Values of options, and calls, that stand in docs, tests and examples."""
    values: dict[str, set[str]] = defaultdict(set)
    calls = []
    for path in sorted(ROOT.glob("**/*.*")):
        if path.suffix not in (".md", ".py", ".toml") or ".executed" in path.parts:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        for option, value in re.findall(r"(--[a-z][a-z0-9-]*)[ =]([^\s\"'`|\\\])]+)", text):
            if not re.search(r"[{}<>$*%]", value):
                values[option].add(value.rstrip(".,:;"))
        calls += re.findall(r"iosim ([a-z][a-z-]+ [^\n`\"\\'#&;{}<>$|]+)", text)
    return values, [" ".join(call.split()) for call in calls if "..." not in call]


class Drawing:
    """Draws calls, from those that succeed so far."""

    def __init__(self, seed: int, commands: dict[str, argparse.ArgumentParser]) -> None:
        self.lot = random.Random(seed)
        self.values, in_use = values_in_use()
        self.options: dict[str, Options] = {
            name: {
                action.option_strings[-1]: action
                for action in parser._actions
                if action.option_strings and not WRITES & {*action.option_strings}
            }
            for name, parser in commands.items()
            if name not in SKIPPED
        }
        self.good: dict[str, list[str]] = {name: [name] for name in self.options}
        for call in in_use:
            self.succeeded(call)

    def succeeded(self, call: str) -> None:
        name = call.split()[0]
        if name in self.good and not WRITES & {*call.split()}:
            self.good[name].append(call)

    def value(self, option: str, action: argparse.Action) -> list[str] | None:
        """Words of an option's value; None where none is known."""
        if action.nargs == 0:
            return []
        if action.choices:
            return [str(self.lot.choice([*action.choices]))]
        known = SIZES[option].split() if option in SIZES else sorted(self.values[option])
        return [self.lot.choice(known)] if known else None

    def call(self) -> str:
        name = self.lot.choice([*self.options])
        words = self.lot.choice(self.good[name]).split()
        first = next((n for n, word in enumerate(words) if word.startswith("--")), len(words))
        groups: list[list[str]] = []
        for word in words[first:]:
            if word.startswith("--"):
                groups.append([word])
            else:
                groups[-1].append(word)
        for _ in range(self.lot.choice((1, 1, 2, 2, 3, 4)) if self.options[name] else 0):
            if groups and self.lot.random() < 0.15:
                groups.pop(self.lot.randrange(len(groups)))
                continue
            typed = [g[0] for g in groups if g[0] in self.options[name]]
            again = typed and self.lot.random() < 0.25
            option = self.lot.choice(typed if again else [*self.options[name]])
            value = self.value(option, self.options[name][option])
            if value is not None:
                groups = [g for g in groups if g[0] != option] + [[option, *value]]
        return " ".join([*words[:first], *(word for g in groups for word in g)])


class News:
    """What has run and been altered so far in this process."""

    def __init__(self) -> None:
        self.monitor = measured.Monitor()
        self.lines: set[Any] = set()
        self.altered: set[int] = set()

    def is_any(self) -> bool:
        """Whether there is any since the last call."""
        lines, now = self.monitor.taken() - self.lines, altered.WATCH.altered - self.altered
        self.lines |= lines
        self.altered |= now
        return bool(lines or now)


def made(call: str) -> tuple[Any, str] | None:
    """Exit code and words of a call; None where it takes too long."""
    from drawn_cases import printed

    begun = time.process_time()
    signal.setitimer(signal.ITIMER_REAL, MOST_S)
    try:
        code, output, errors = printed(call)
    except Slow:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return (code, output + errors) if time.process_time() - begun < MOST_CPU_S else None


def drawn(seed: int, seconds: float) -> Iterator[str]:
    """Calls to be kept, as they are found."""
    from command_cases import CALLS
    from drawn_cases import calls, written

    from iosim.commands.cli import build_parser
    from iosim.commands.completion import subparsers

    drawing, news = Drawing(seed, subparsers(build_parser())), News()
    seen = [*CALLS, *calls()]
    for call in seen:
        made(call)
        drawing.succeeded(call)
    news.is_any()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        call = drawing.call()
        done = made(call)
        if not news.is_any() or done is None or written(call) in seen:
            continue
        if not done[0]:
            drawing.succeeded(call)
        if not OF_ALL.search(done[1]) and not GROW.search(call):
            seen.append(written(call))
            yield written(call)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="draw_calls.py", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=900.0)
    groups = parser.parse_args()

    def stopped(*_: Any) -> None:
        raise Slow

    signal.signal(signal.SIGALRM, stopped)
    with tempfile.TemporaryDirectory(prefix="iosim-drawn-") as folder:
        os.environ[altered.FOLDER] = folder
        os.chdir(folder)
        altered.start()
        from drawn_cases import CALLS_FILE

        for call in drawn(groups.seed, groups.seconds):
            with CALLS_FILE.open("a", encoding="utf-8") as file:
                file.write(call + "\n")
            print(call, flush=True)


if __name__ == "__main__":
    main()
