"""Attention over several GPUs: chunk schedules as data, and what follows from them.

A schedule (`schedule.build`) says which GPU computes which pair of chunks in which step, and what is sent meanwhile.
`count` gives bytes on the links, idle slots and memory, `timing` plays it over links, and `closed_forms` has the
formulas in the number of GPUs, written apart from it.
"""

from iosim.studies.distributed.count import idle, link_bytes, longest_sequence, memory
from iosim.studies.distributed.links import cluster, load_link
from iosim.studies.distributed.schedule import (
    SCHEDULES,
    ChunkSchedule,
    Compute,
    Send,
    Step,
    build,
    schedules,
)
from iosim.studies.distributed.study import Result, study
from iosim.studies.distributed.timing import ChunkTimes, Timeline, simulate

__all__ = [
    "SCHEDULES",
    "ChunkSchedule",
    "ChunkTimes",
    "Compute",
    "Result",
    "Send",
    "Step",
    "Timeline",
    "build",
    "cluster",
    "idle",
    "link_bytes",
    "load_link",
    "longest_sequence",
    "memory",
    "schedules",
    "simulate",
    "study",
]
