"""Tables that tests validate."""

from __future__ import annotations

import csv
import os
from functools import cache
from pathlib import Path
from unittest.mock import patch

from effort import KEPT_REPLAYS

from iosim.base.data import data_dir
from iosim.evidence.validate import Comparison, compare, default_files, read
from iosim.hardware.profile import load_profile

FOLDER = data_dir("kernels") / "measurements"


LIBRARY, CHAINS = (str(path) for path in default_files())


Table = list[dict[str, str]]


def table(path: str) -> Table:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: Table) -> str:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def some_calls(path: str, *numbers: int) -> Table:
    return [r for r in table(path) if int(r["call"]) in numbers]


@cache
def shipped() -> Comparison:
    with patch.dict(
        os.environ, IOSIM_CACHE=os.environ[KEPT_REPLAYS]
    ):  # the README's command plays the same
        return compare(
            [row for path in default_files() for row in read(path)], load_profile("h200")
        )
