"""Launches of library calls whose terms of time tests ask for."""

from __future__ import annotations

from dataclasses import replace

from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing.launch_time import LaunchTime


def call(gpu: str, kernel: str = "fa2", **problem: object) -> Call:
    attention = AttentionProblem(
        **{"heads": 8, "seq_q": 4096, "head_dim": 128, "dtype": "bf16", **problem}
    )
    profile = load_profile(gpu)
    return Call.of(attention, resolve(kernel, attention, profile), profile)


def main_launch(whole_call: Call, hbm: bool = True, **changed: object) -> LaunchTime:
    """The main launch with values of its work changed, HBM bytes by the capacity rule or none."""
    launches = tuple(
        replace(launch, work=replace(launch.work, **changed))
        for launch in whole_call.chain.launches
    )
    whole_call = replace(whole_call, chain=replace(whole_call.chain, launches=launches))
    times = whole_call.time(
        whole_call.counted + whole_call.capacity() if hbm else whole_call.counted
    ).launches
    return next(time for time in times if time.name in ("main", "bwd.main"))
