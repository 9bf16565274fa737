"""Launches of library calls whose terms of time tests ask for."""

from __future__ import annotations

from dataclasses import replace

from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing.launch_time import LaunchTime


def call(gpu: str, kernel: str = "fa2", **problem: object) -> Call:
    asked = AttentionProblem(
        **{"heads": 8, "seq_q": 4096, "head_dim": 128, "dtype": "bf16", **problem}
    )
    profile = load_profile(gpu)
    return Call.of(asked, resolve(kernel, asked, profile), profile)


def main_launch(made: Call, hbm: bool = True, **changed: object) -> LaunchTime:
    """The main launch with values of its work changed, HBM bytes by the capacity rule or none."""
    launches = tuple(replace(one, work=replace(one.work, **changed)) for one in made.chain.launches)
    made = replace(made, chain=replace(made.chain, launches=launches))
    found = made.time(made.counted + made.capacity() if hbm else made.counted).launches
    return next(one for one in found if one.name in ("main", "bwd.main"))
