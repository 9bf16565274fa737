"""The executing reader: a chain's launches run on NumPy arrays, every access performed at its place and counted.

It shares the description with the counter and nothing else: blocks are visited by looking at every kept pair,
bytes are counted tile by tile. A body may use only tiles that the launch's accesses have loaded and store only through
them, so a description that forgets a tensor cannot compute attention.
"""

import executor.bodies  # noqa: F401 - registers them
from executor.body import Body, ExecutionError, Place, body
from executor.numerics import kept_weights, round_to
from executor.reference import random_arrays, reference
from executor.run import Execution, execute

__all__ = [
    "Body",
    "Execution",
    "ExecutionError",
    "Place",
    "body",
    "execute",
    "kept_weights",
    "random_arrays",
    "reference",
    "round_to",
]
