"""Finds and reads the tables of measurements that were recorded here: shipped ones, and those of a checkout's experiments."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from iosim.base.data import data_dir
from iosim.base.errors import InputError


def place(name: str) -> Path:
    """A recorded table: one that commands read, or one of a checkout's experiments. Raises InputError where this
    installation has no experiments."""
    shipped = data_dir("kernels") / "measurements" / name
    if shipped.is_file():
        return shipped
    of_checkout = data_dir("kernels").parent / "experiments" / "measurements" / name
    if not of_checkout.is_file():
        raise InputError(
            f"{name} is in no wheel: it lies in experiments/measurements of a checkout"
        )
    return of_checkout


@cache
def rows(name: str) -> tuple[dict[str, str], ...]:
    with place(name).open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))
