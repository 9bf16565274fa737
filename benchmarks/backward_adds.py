"""What the atomic adds of dQ cost the project's backward: the profile's `add_packet_cycles`, fitted on odd calls.

    python benchmarks/backward_adds.py

For each value the mean |log(predicted / measured)| of flash_bwd's main launch, on odd calls and on even ones, which are
held out; then each call beside its deterministic twin, which has no adds: cycles of a step that the twin does not need.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from iosim import HardwareProfile, load_profile
from iosim.evidence.validate import Row, read
from iosim.evidence.validate.match import match
from iosim.evidence.validate.residuals import calls
from iosim.evidence.validate.rows import own_file
from iosim.prediction.call import Call

VALUES = [round(0.1 * n, 1) for n in (0, 10, *range(20, 36))]
MAIN = 1
"""Place of the main launch among a call's three."""


def main_times(members: list[Row], profile: HardwareProfile, values: list[float]) -> list[float]:
    """log(predicted / measured) of a call's main launch, for each value of the constant."""
    case = match(members, profile)
    chain = case.chains[MAIN]
    call = Call.of(case.problem, case.kernel, profile, chain)
    traffic = call.counted + call.replay().traffic
    times = (
        replace(call, profile=replace(profile, add_packet_cycles=value)).time(traffic).total_s
        for value in values
    )
    return [math.log(seconds / members[MAIN].measured["time"]) for seconds in times]


def step_cycles(members: list[Row], profile: HardwareProfile) -> float:
    """Measured SM cycles of a step of the main launch, at the profile's clock."""
    case = match(members, profile)
    chain = case.chains[MAIN]
    domain = chain.launches[0].domain
    steps = int(domain.visited.count.sum()) * domain.grid_heads
    clock = profile.sustained_clock_hz or profile.boost_clock_hz or 0.0
    return members[MAIN].measured["time"] * clock * profile.sm_count / steps


def main() -> None:
    profile = load_profile("h200")
    backward = [c for c in calls(read(own_file())) if c[0].implementation == "flash_bwd"]
    adding = [c for c in backward if not c[0].facts["note"]]
    pairs = [(c[0].call % 2, main_times(c, profile, VALUES)) for c in adding]
    print("cycles  odd calls  even calls")
    for n, value in enumerate(VALUES):
        halves = [
            statistics.mean(abs(logs[n]) for parity, logs in pairs if parity == p) for p in (1, 0)
        ]
        print(f"{value:6.1f}  {halves[0]:9.4f}  {halves[1]:10.4f}")
    print("\ncall  twin  cycles of a step  without adds  difference")
    by_call = {c[0].call: c for c in backward}
    for c in adding:
        twin = by_call.get(c[0].call + 1)
        if twin is not None and twin[0].facts["note"] == "deterministic":
            here = step_cycles(c, profile)
            twin_cycles = step_cycles(twin, profile)
            print(
                f"{c[0].call:4}  {twin[0].call:4}  {here:16.0f}  {twin_cycles:12.0f}  {here - twin_cycles:10.0f}"
            )


if __name__ == "__main__":
    main()
