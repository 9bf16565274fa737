"""check_claim(): what a number from elsewhere counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from iosim.api.asked import one, overrides_of, problem_of
from iosim.api.calls import GPU
from iosim.api.keywords import PROBLEM, SETTINGS, SHORT, public
from iosim.base.errors import InputError
from iosim.base.words import DEFAULT

if TYPE_CHECKING:
    from iosim.api.typed import Keywords
    from iosim.evidence.claims import Check
    from iosim.hardware.profile import HardwareProfile
    from iosim.problem.attention import AttentionProblem


@public(PROBLEM, SHORT, SETTINGS)
def check_claim(
    problem: AttentionProblem | None = None,
    kernel: str = DEFAULT,
    gpu: str | HardwareProfile = GPU,
    *,
    hbm: str | None = None,
    l2: str | None = None,
    time: str | None = None,
    flops: str | None = None,
    tolerance: str | float | None = None,
    layers: int | None = None,
    **asked: Unpack[Keywords],
) -> Check:
    """Which level, direction and count a number from elsewhere is of, and why a counter would show another.

        >>> iosim.check_claim(hbm="276.8MB", gpu="a100", seq_len=1024).answer()

    Args:
        problem: what the number is of; by default what the keywords say.
        kernel: a catalog name; by default the GPU's own.
        gpu: a GPU's name, a path to a profile file, or a HardwareProfile.
        hbm: bytes that are said to move between HBM and the L2, such as "4.3GB".
        l2: bytes that are said to move between the L2 and the SMs, such as "2.2GB".
        time: seconds that a call is said to take, such as "1.4ms".
        flops: operations that a call is said to take, such as "137GFLOP".
        tolerance: how far a count may be from it, such as "2%" or 0.02; by default 1 %, or half a unit of its last
            digit up to 5 %.
        layers: layers of the model, where the number may be of all of them.
        **asked: the fields of a problem and the settings over a kernel's choice.

    Returns:
        A Check: `c.answer()`, `c.matches`, `c.nearest`, `c.prediction`.

    Raises:
        InputError: no claim or several, or values that make no sense.
    """
    from iosim.evidence.claims import check, parse, share

    claims = {"hbm": hbm, "l2": l2, "time": time, "flops": flops}
    given = {name: text for name, text in claims.items() if text is not None}
    if len(given) != 1:
        raise InputError(f"check_claim() takes one claim and has {len(given)}; accepted: one of {', '.join(claims)}, "
                         "such as hbm='4.3GB'")  # fmt: skip
    if layers is not None and layers < 1:
        raise InputError(f"`layers` {layers} is out of range; accepted: 1 or more")
    ((quantity, text),) = given.items()
    return check(
        parse(quantity, text), problem_of(problem, asked, "a loop"), one(kernel, "kernel"), one(gpu, "gpu"),
        tolerance=share(tolerance), layers=layers, overrides=overrides_of(asked, kernel),
    )  # fmt: skip
