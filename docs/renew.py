"""Renews every printed output that README.md, docs and examples show:

    python docs/renew.py [--check] [--all] [NAME...]

A block of `text` on a page holds all that the block of `sh` or `python` above it prints; a block of `text part` those
lines of it that are most like the lines that stand there, in their order. Beside the pages: README's figure,
the outputs of the examples' scripts, the notebook, and the pages of docs/generated. What takes minutes is left to
`--all`. A NAME is a file to renew; without one, all are. `--check` writes nothing. Tests compare.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path

from iosim.base.files import write_whole
from iosim.commands.cli import main as iosim

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(sh|python|text)( part)?\n(.*?)^```$", re.S | re.M)
WRITES = re.compile(r"(?:^|\s)(?:-o|--out)\s")
LIKE = 0.6
"""How like a line must be, digits aside, to stand for another."""
MAKERS = {
    "iosim/api/typed.pyi": "docs/generated/make_keywords.py",
    "iosim/studies/explore/checked.toml": "docs/generated/make_checked.py",
    "docs/tutorial.ipynb": "docs/generated/make_tutorial.py",
    "docs/images/bytes.png": "docs/generated/make_figure.py",
    "docs/generated/claims.md": "docs/generated/make_claims.py",
    "docs/generated/launch-fields.md": "docs/generated/make_launch_fields.py",
    "docs/generated/foreign-kernels.md": "benchmarks/foreign_kernels.py --write",
    "docs/generated/timing-terms.md": "benchmarks/terms.py --write",
    "docs/generated/serving-errors.md": "benchmarks/serving_error.py --write",
    "docs/validation.md": "benchmarks/shared_memory.py --write",
    "docs/validation-others.md": "benchmarks/others.py --write",
}
"""File -> the script that writes it."""
SLOW = {
    "docs/generated/random-draws.md": "benchmarks/random_draws.py --write",
    "docs/generated/l2_constants.md": "benchmarks/fit_published.py --write",
    "docs/timing.md": "benchmarks/timing_error.py --write",
}
"""The same for those that take minutes."""


class Unlike(ValueError):
    """A line of a page that nothing printed is like."""


def printed(kind: str, code: str) -> str:
    """What a block prints.

    Raises:
        RuntimeError: a command of it fails, or says more on standard error than which file it wrote and where that
            opens.
    """
    if kind == "python":
        return ran(["-c", code])
    out, err = io.StringIO(), io.StringIO()
    for line in code.strip().splitlines():
        name, *words = shlex.split(line.split("&& ")[-1])
        if name == "python":
            out.write(ran(words, ROOT))
            continue
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            ended = iosim(words) if name == "iosim" else 1
        if ended or not all(
            line.startswith(("iosim: open ", "iosim: wrote "))
            for line in err.getvalue().splitlines()
        ):
            raise RuntimeError(f"{line}\n{err.getvalue()}")
    return out.getvalue()


def ran(words: Sequence[str], cwd: Path | None = None) -> str:
    """What Python prints.

    Raises:
        RuntimeError: it fails.
    """
    here = dict(os.environ)  # without COLUMNS, which readline sets where Python does not see it
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, capture_output=True, text=True, check=False, env=here
    )
    if done.returncode:
        raise RuntimeError(f"{words[-1]}\n{done.stderr}")
    return done.stdout


def renewed(page: str, *, every: bool = False) -> str:
    """A page with what its blocks print, run in the present directory: those that are shown or write a file, or
    `every` one.

    Raises:
        RuntimeError: a command fails.
        Unlike: a line of a part is like no line that is printed.
    """
    parts: list[str] = []
    end, above, known = 0, ("", ""), ""
    last = page.rfind("\n```text")
    for match in BLOCK.finditer(page):
        kind, part, code = match.groups()
        if kind != "text":
            run = every or (WRITES.search(code) and match.start() < last)
            above = (kind, code)
            known = printed(kind, code) if run else ""
        elif above[0]:
            known = known or printed(*above)
            lines = [line.rstrip() for line in known.strip("\n").splitlines()]
            lines = alike(code.splitlines(), lines) if part else lines
            parts += [
                page[end : match.start()],
                f"```text{part or ''}\n",
                *(f"{line}\n" for line in lines),
                "```",
            ]
            end = match.end()
    return "".join([*parts, page[end:]])


def alike(printed_lines: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Of `lines` those that are most like the shown ones, in their order; empty ones stay.

    Raises:
        Unlike: none is.
    """
    wanted = [line for line in printed_lines if line.strip()]
    best: list[tuple[float, tuple[int, ...]] | None] = [(0.0, ())] * (len(lines) + 1)
    for line in wanted:
        after: list[tuple[float, tuple[int, ...]] | None] = [None]
        for n, other in enumerate(lines):
            likeness, before = _likeness(line, other), best[n]
            here = (
                None if before is None or not likeness else (before[0] + likeness, (*before[1], n))
            )
            after.append(
                max(
                    (x for x in (after[-1], here) if x is not None),
                    default=None,
                    key=lambda x: x[0],
                )
            )
        if after[-1] is None:
            raise Unlike(f"nothing printed is like {line!r}")
        best = after
    assert best[-1] is not None
    taken = iter(best[-1][1])
    return [lines[next(taken)] if line.strip() else "" for line in printed_lines]


def _likeness(first: str, other: str) -> float:
    """1 for the same words, and a little more for the same digits; 0 where they are too different."""
    words = [re.sub(r"\d[\d.,]*", "0", " ".join(line.split())) for line in (first, other)]
    match = SequenceMatcher(None, *words, autojunk=False)
    if match.quick_ratio() < LIKE or (ratio := match.ratio()) < LIKE:
        return 0.0
    return ratio + 0.01 * SequenceMatcher(None, first, other, autojunk=False).ratio()


def page_text(place: Path) -> str:
    """A page as it should be, its commands run in an empty directory."""
    text = place.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return renewed(text)


def pages() -> Iterator[tuple[Path, Callable[[], str]]]:
    """Files with printed outputs, and what gives their text."""
    for place in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if place == ROOT / "README.md" or BLOCK.search(place.read_text(encoding="utf-8")):
            yield place, partial(page_text, place)
    for place in sorted((ROOT / "examples" / "output").glob("*.txt")):
        yield place, partial(ran, [f"examples/{place.stem}.py"], ROOT)


def renew(place: Path, text: Callable[[], str], check: bool) -> str:
    """Renews a file; what to say of it."""
    started = time.perf_counter()
    try:
        new = text()
    except (RuntimeError, Unlike) as error:
        return f"NOT RENEWED, {error}"
    if new == place.read_text(encoding="utf-8"):
        return f"as it was ({time.perf_counter() - started:.0f} s)"
    if not check:
        write_whole(place, new)
    return f"{'out of date' if check else 'renewed'} ({time.perf_counter() - started:.0f} s)"


def make(place: Path, command: str) -> str:
    """Runs the script that writes a file; what to say of it."""
    started = time.perf_counter()
    before = place.read_bytes()
    try:
        ran(command.split(), ROOT)
    except RuntimeError as error:
        return f"NOT RENEWED, {error}"
    same = place.read_bytes() == before
    return (
        f"{'as it was' if same else 'renewed'} by {command} ({time.perf_counter() - started:.0f} s)"
    )


def main() -> int:
    """The command line; 1 where something was not renewed, or with `--check` is out of date."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; scripts that write files are left out"
    )
    parser.add_argument("--all", action="store_true", help="what takes minutes, too")
    args = parser.parse_args()
    os.environ.pop("COLUMNS", None)
    os.environ["IOSIM_PROFILES"] = os.devnull
    wanted = {Path(name).resolve() for name in args.names}
    jobs = {place: partial(renew, place, text, args.check) for place, text in pages()}
    if not args.check:
        makers = MAKERS | (SLOW if args.all or wanted else {})
        jobs |= {
            ROOT / name: partial(make, ROOT / name, command) for name, command in makers.items()
        }
    bad = 0
    with ProcessPoolExecutor() as pool:
        running = {
            pool.submit(job): place for place, job in jobs.items() if not wanted or place in wanted
        }
        for job in as_completed(running):
            message = job.result()
            bad |= message.startswith(("NOT", "out"))
            print(f"{running[job].relative_to(ROOT)}: {message}", flush=True)
    if not args.all and not wanted and not args.check:
        print(f"left to --all: {', '.join(SLOW)}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
