"""Kernels and GPUs side by side: bytes of each level, time and memory, and their ratios to a baseline.

What cannot run somewhere is a row with its reason. HBM traffic is replayed; a row whose replay would take too long has
an estimate, with a mark in its cells. `run_choice` ranks GPUs, each with its best kernel.
"""

from iosim.studies.compare.choice import Choice
from iosim.studies.compare.choice import rank_gpus as run_choice
from iosim.studies.compare.face import as_page, as_text
from iosim.studies.compare.study import GROUPS, Comparison, Entry, by_group, compare

__all__ = [
    "GROUPS",
    "Choice",
    "Comparison",
    "Entry",
    "as_page",
    "as_text",
    "by_group",
    "compare",
    "run_choice",
]
