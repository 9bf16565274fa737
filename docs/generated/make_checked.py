"""Writes iosim/studies/explore/checked.toml, what the explorer's page says was checked, of README.md's table:

python docs/generated/make_checked.py
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "iosim" / "studies" / "explore" / "checked.toml"
PROFILES = {
    "T4": ["t4"],
    "L4": ["l4"],
    "A100": ["a100-sxm-80gb", "a100-sxm-40gb", "a100-pcie-80gb"],
    "H100": ["h100-sxm"],
    "H200": ["h200-sxm"],
    "B200": ["b200"],
    "GeForce": [
        "rtx-2080-ti",
        "rtx-3080",
        "rtx-3090",
        "rtx-4080",
        "rtx-4090",
        "rtx-5080",
        "rtx-5090",
    ],
}
HEAD = """\
# What was checked on which GPU, row by row as README.md's table has it: made by docs/generated/make_checked.py.
"""


def rows() -> list[list[str]]:
    """The cells of README.md's table."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## How far to trust it")[2]
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [[c.strip().replace("`", "") for c in line.strip("|").split("|")] for line in lines[2:]]


def written() -> str:
    """The text of the file."""
    text = HEAD
    for gpu, size, times, by in rows():
        values = {"gpu": gpu, "profiles": PROFILES[gpu], "bytes": size, "times": times, "by": by}
        text += "\n[[row]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items())
    return text


if __name__ == "__main__":
    TARGET.write_text(written(), encoding="utf-8")
