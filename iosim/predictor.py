"""predict(): the one verb. Problem x Kernel x Profile -> Prediction."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from iosim.algorithms import plan
from iosim.bounds import bounds, memory
from iosim.catalog import Overrides, resolve
from iosim.count import count, visited_pairs
from iosim.errors import EngineWarning, InputError, TooLargeError
from iosim.hardware import HardwareProfile, load_profile
from iosim.kernel import Kernel
from iosim.launch import Chain, Launch, Per
from iosim.prediction import Prediction
from iosim.problem import AttentionProblem
from iosim.residency import residency
from iosim.timing import chain_time
from iosim.traffic import Traffic

if TYPE_CHECKING:
    from iosim.simulator.replay import Replay

METHODS = ("bounds", "capacity", "sampled", "replay")
SAMPLED_STEPS = 16
"""Steps that a work tile has on average where a launch is worth playing in part."""
L2_STARTS = ("cold", "warm")
QUICK_ACCESSES = 30_000_000
"""Tile accesses up to which a prediction plays all of them unless another method is asked for: about a second."""


def predict(
    problem: AttentionProblem,
    kernel: str | Kernel = "fa2",
    profile: str | HardwareProfile = "a100",
    *,
    l2_start: str = "cold",
    method: str | None = None,
    overrides: Overrides | None = None,
) -> Prediction:
    """Bytes by level and tensor, bounds, occupancy, time and memory of one attention call on one GPU.

    Args:
        problem: what is computed.
        kernel: a catalog name (`fa2`, `sdpa`, ...) or a Kernel of your own.
        profile: a GPU's name, a path to a profile file, or a HardwareProfile.
        l2_start: "cold" (flushed) or "warm" (inputs left in L2 as far as they fit).
        method: how HBM traffic is found: "bounds" (interval alone), "capacity" (the capacity rule's estimate),
            "replay" (the launches played through the L2) or "sampled" (a replay in which long launches are played in
            part). By default a replay, sampled where all of it would take seconds, or the capacity rule where that
            would not help or where there is no engine to replay with; the notes say so.
        overrides: settings over a catalog kernel's own choice.

    Raises:
        InputError: values that make no sense, or a kernel that cannot run the problem on that GPU.
    """
    if method is not None and method not in METHODS:
        raise InputError(f"--method '{method}' is not known; accepted: {', '.join(METHODS)}")
    if l2_start not in L2_STARTS:
        raise InputError(f"--l2 '{l2_start}' is not known; accepted: {', '.join(L2_STARTS)}")
    if l2_start == "warm" and method == "capacity":
        raise InputError("--l2 warm: the capacity rule knows a cold start only; accepted with it: cold")
    chosen, gpu, chain = planned(problem, kernel, profile, overrides)
    traffic = count(chain)
    said: tuple[str, ...] = ()
    chooses = method is None
    if method is None:
        method, said = default_method(chain, l2_start)
        method = playable(method, l2_start)
    try:
        hbm, notes, played = hbm_traffic(problem, chosen, chain, gpu, method, l2_start)
    except TooLargeError as error:
        if not chooses or l2_start != "cold":
            raise
        method, said = "capacity", (f"HBM: no replay: {str(error).split(': ', 1)[1].split(';')[0]}",)
        hbm, notes, played = hbm_traffic(problem, chosen, chain, gpu, method, l2_start)
    traffic += hbm
    return Prediction(
        problem=problem,
        kernel=chosen,
        profile=gpu,
        chain=chain,
        traffic=traffic,
        hbm_bounds=bounds(problem, chain),
        l2_start=l2_start,
        method=method,
        time=chain_time(problem, chain, traffic, gpu, measured=True, kernel=chosen),
        time_specification=chain_time(problem, chain, traffic, gpu, measured=False, kernel=chosen),
        memory_bytes=memory(chain),
        replay=played,
        notes=tuple(dict.fromkeys((*chosen.notes, *chain.notes, *said, *notes))),
    )


def planned(
    problem: AttentionProblem, kernel: str | Kernel, profile: str | HardwareProfile, overrides: Overrides | None = None
) -> tuple[Kernel, HardwareProfile, Chain]:
    """The kernel with all its settings, the profile, and the chain that runs.

    Raises:
        InputError: as `predict` does.
    """
    gpu = load_profile(profile) if isinstance(profile, str) else profile
    chosen = resolve(kernel, problem, gpu, overrides) if isinstance(kernel, str) else kernel
    chain = plan(problem, chosen)
    check_fits(chain, gpu)
    return chosen, gpu, chain


def tile_accesses(chain: Chain) -> int:
    """Tile accesses of a chain's loops: what a replay would play, about."""
    return sum(visited_pairs(launch) * sum(a.per is Per.PAIR for a in launch.accesses) for launch in chain.launches)


def repeats(launch: Launch) -> bool:
    """Whether a launch's work tiles loop long enough to be played in part."""
    return launch.outer in ("q", "k", "q,split") and visited_pairs(launch) >= SAMPLED_STEPS * launch.work_tiles


def default_method(chain: Chain, l2_start: str) -> tuple[str, tuple[str, ...]]:
    """A replay of up to `QUICK_ACCESSES` tile accesses, sampled where there are more; else the capacity rule, and why.

    A warm start is always replayed: the capacity rule knows none.
    """
    accesses = tile_accesses(chain)
    if accesses <= QUICK_ACCESSES:
        return "replay", ()
    whole = sum(tile_accesses(replace(chain, launches=(launch,))) for launch in chain.launches if not repeats(launch))
    if whole <= QUICK_ACCESSES:
        return "sampled", ()
    if l2_start != "cold":
        return "replay", ()
    return "capacity", (f"HBM: a replay of {accesses:,} tile accesses was not begun; --method replay does it, at "
                        "some 20 million a second",)  # fmt: skip


def playable(method: str, l2_start: str) -> str:
    """A method that was chosen by default, or the capacity rule in its place where there is no engine to replay with.

    A warm start stays as it is: the capacity rule knows none.
    """
    if method not in ("sampled", "replay") or l2_start != "cold":
        return method
    from iosim.simulator.library import why_missing

    reason = why_missing()
    if reason is None:
        return method
    warnings.warn(f"HBM traffic is estimated by the capacity rule: {reason}", EngineWarning, stacklevel=3)
    return "capacity"


def check_fits(chain: Chain, profile: HardwareProfile) -> None:
    """Refuse a chain with a launch of which no CTA fits on an SM.

    Raises:
        InputError: says what the launch needs and what the SM allows.
    """
    for launch in chain.launches:
        found = residency(launch, profile).occupancy
        if found.ctas_per_sm == 0:
            tile = f"{launch.domain.block_q}x{launch.domain.block_k}"
            raise InputError(f"--tile {tile} with {launch.resources.threads} threads: {found.reason} ({profile.name})")


def hbm_traffic(
    problem: AttentionProblem, kernel: Kernel, chain: Chain, profile: HardwareProfile, method: str, l2_start: str
) -> tuple[Traffic, tuple[str, ...], Replay | None]:
    """HBM rows of a chain by the chosen method, what a reader should know of them, and the replay behind them."""
    if method == "bounds":
        return Traffic(), ("HBM: only the bounds are given; the truth lies between them",), None
    if method == "capacity":
        from iosim import capacity

        note = "HBM: capacity rule, an estimate; all outputs counted as written back"
        return capacity.estimate(chain, profile), (note,), None
    from iosim.simulator.replay import replay

    played = replay(problem, kernel, chain, profile, l2_start=l2_start, part=method == "sampled")
    return played.traffic, played.notes(), played
