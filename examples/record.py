"""Writes what the commands of examples/questions print below them: `python examples/record.py [NAME...]`.

Every block of `sh` or `python` on such a page runs in the repository's root, and what it prints stands in the block of
`text` that follows it. A test compares.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "examples" / "questions"
BLOCK = re.compile(r"```(sh|python)\n(.*?)```\n(?:\n```text\n.*?```\n)?", re.S)


def printed(kind: str, code: str) -> str:
    """What a block prints.

    Raises:
        CalledProcessError: a command of it fails.
    """
    commands = [[sys.executable, "-c", code]]
    if kind == "sh":
        words = [shlex.split(line) for line in code.strip().splitlines()]
        assert all(line[0] == "iosim" for line in words), code
        commands = [[sys.executable, "-m", "iosim", *line[1:]] for line in words]
    setting = os.environ | {"COLUMNS": "100000"}
    return "".join(
        subprocess.run(one, cwd=ROOT, env=setting, capture_output=True, text=True, timeout=300, check=True).stdout
        for one in commands
    )


def recorded(page: str) -> str:
    """A page with what its blocks print."""

    def block(match: re.Match[str]) -> str:
        kind, code = match.groups()
        lines = (line.rstrip() for line in printed(kind, code).strip().splitlines())
        return f"```{kind}\n{code}```\n\n```text\n{chr(10).join(lines)}\n```\n"

    return BLOCK.sub(block, page)


def main(names: list[str]) -> None:
    for path in sorted(PAGES.glob("*.md")):
        if not names or path.stem in names:
            path.write_text(recorded(path.read_text(encoding="utf-8")), encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
