"""What each launch of the shipped algorithms computes, a module for each that is not another's variant."""

from executor.bodies import (
    blocks,
    cascade,
    flash,
    flash1,
    math_path,
    mixture,
    naive,
    picked,
    states,
    variants,
)

__all__ = [
    "blocks",
    "cascade",
    "flash",
    "flash1",
    "math_path",
    "mixture",
    "naive",
    "picked",
    "states",
    "variants",
]
