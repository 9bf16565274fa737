"""By how much the CTAs of a launch part from one another: those of an SM by age, and SMs.

Described kernels have the rates by age of `sharing.py` and the spread over SMs that their file states. CTAs of kernels whose
code was read go about equally fast, those of an SM and those of different SMs, unless their frames fill the L2: then the
oldest CTA of an SM goes first, and each SM has a speed of its own (h200_walks.csv).
"""

from __future__ import annotations

from iosim.base.records import dataclass
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Launch, LaunchRole
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.frames import frames_fill_l2
from iosim.readers.replay.objects import streams
from iosim.readers.replay.sharing import rates_of, sloped

AGE_SHARE = {2: 0.0, 3: 0.014, 4: 0.03, 5: 0.11}
"""What the oldest of so many CTAs of an SM goes faster than the youngest: medians of 16 kernels whose
frames do not fill the L2 (h200_walks.csv). For more CTAs it is that of five."""
FRAMES_AGE_SHARE = 0.09
"""What the oldest of an SM's CTAs goes faster than the youngest where frames fill the L2: the median of the
eight kernels of that table whose frames do."""
FRAMES_SM_SPREAD = 0.021
"""By how much the speeds of SMs differ there either way: the median of the same kernels' standard deviations, 1.2 %, as the
half width of an even spread."""
SMS_ALIKE = 16
"""SMs in a row, a cluster of them, that have one speed in kernels that state a spread (h200_iosim_steps.npz)."""


@dataclass(frozen=True)
class Parting:
    """Of the CTAs of an SM: `rates`, the oldest first, in units of their mean. Of SMs: speeds that differ by up to
    `sm_spread` either way, in runs of `sms_alike`."""

    rates: tuple[float, ...] = (1.0,)
    sm_spread: float = 0.0
    sms_alike: int = SMS_ALIKE


def parting_of(
    problem: AttentionProblem,
    kernel: Kernel,
    profile: HardwareProfile,
    launch: Launch,
    slots: int,
) -> Parting:
    """How the CTAs of a launch part, of which `slots` run at once. Raises InputError: the profile lacks a number."""
    stated = kernel.sm_spread or 0.0
    if streams(launch):  # an object stands for several CTAs
        return Parting(sm_spread=stated)
    ctas = -(-slots // profile.sm_count)
    if launch.touched is None and launch.work.machine is None:
        rates = rates_of(kernel, problem, ctas, compiled=launch.role is LaunchRole.MAIN)
        return Parting(rates, stated)
    filled = frames_fill_l2(launch, min(slots, launch.work_tiles), profile)
    share = FRAMES_AGE_SHARE if filled else AGE_SHARE[min(max(ctas, 2), max(AGE_SHARE))]
    rates = sloped(share, ctas) if ctas > 1 else (1.0,)
    return Parting(rates, FRAMES_SM_SPREAD, sms_alike=1) if filled else Parting(rates, stated)
