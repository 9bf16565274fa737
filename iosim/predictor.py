"""predict(): the one verb. Problem x Kernel x Profile -> Prediction."""

from __future__ import annotations

from iosim.algorithms import plan
from iosim.bounds import bounds, memory
from iosim.catalog import Overrides, resolve
from iosim.count import count
from iosim.errors import InputError
from iosim.hardware import HardwareProfile, load_profile
from iosim.kernel import Kernel
from iosim.launch import Chain
from iosim.prediction import Prediction
from iosim.problem import AttentionProblem
from iosim.residency import residency
from iosim.timing import chain_time
from iosim.traffic import Traffic

METHODS = ("bounds", "capacity", "replay")
L2_STARTS = ("cold", "warm")
DEFAULT_METHOD = "capacity"


def predict(
    problem: AttentionProblem,
    kernel: str | Kernel = "fa2",
    profile: str | HardwareProfile = "a100",
    *,
    l2_start: str = "cold",
    method: str = DEFAULT_METHOD,
    overrides: Overrides | None = None,
) -> Prediction:
    """Bytes by level and tensor, bounds, occupancy, time and memory of one attention call on one GPU.

    Args:
        problem: what is computed.
        kernel: a catalog name (`fa2`, `sdpa`, ...) or a Kernel of your own.
        profile: a GPU's name, a path to a profile file, or a HardwareProfile.
        l2_start: "cold" (flushed) or "warm" (inputs left in L2 as far as they fit).
        method: how HBM traffic is found: "bounds" (interval alone) or "capacity" (the capacity rule's estimate).
        overrides: settings over a catalog kernel's own choice.

    Raises:
        InputError: values that make no sense, or a kernel that cannot run the problem on that GPU.
    """
    if method not in METHODS:
        raise InputError(f"--method '{method}' is not known; accepted: {', '.join(METHODS)}")
    if l2_start not in L2_STARTS:
        raise InputError(f"--l2 '{l2_start}' is not known; accepted: {', '.join(L2_STARTS)}")
    gpu = load_profile(profile) if isinstance(profile, str) else profile
    chosen = resolve(kernel, problem, gpu, overrides) if isinstance(kernel, str) else kernel
    chain = plan(problem, chosen)
    check_fits(chain, gpu)
    traffic = count(chain)
    hbm, notes = hbm_traffic(chain, gpu, method, l2_start)
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
        time=chain_time(problem, chain, traffic, gpu, measured=True),
        time_specification=chain_time(problem, chain, traffic, gpu, measured=False),
        memory_bytes=memory(chain),
        notes=tuple(dict.fromkeys((*chosen.notes, *notes))),
    )


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


def hbm_traffic(chain: Chain, profile: HardwareProfile, method: str, l2_start: str) -> tuple[Traffic, tuple[str, ...]]:
    """HBM rows of a chain by the chosen method, and what a reader should know of them."""
    if method == "bounds":
        return Traffic(), ("HBM: only the bounds are given; the truth lies between them",)
    from iosim import capacity

    return capacity.estimate(chain, profile), ("HBM: capacity rule, an estimate; all outputs counted as written back",)
