"""How far off a prediction's HBM bytes may be where the L2's constants are not the GPU's own.

Constants that are taken from another GPU, or assumed, are replaced by what makes the L2 hold least and by what makes
it hold most among all GPUs where they are known. Two more replays tell; what is left unexplained where an L2 is known
comes on top. Nothing of it is computed unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iosim.hardware.profile import HardwareProfile
from iosim.hardware.trust import L2_KNOWN, borrowed_l2
from iosim.kernel.traffic import DIRECTIONS
from iosim.prediction.call import Call
from iosim.prediction.replays import Replays, tile_accesses
from iosim.readers.bounds import memory

if TYPE_CHECKING:
    from iosim.readers.replay.play import Play

ROOMY = 8
"""Calls whose memory fits so many times in the L2 stay in it whatever its constants: copies in two partitions, half of
the lines dirty at most, and pages that fill some sets twice."""
REPLAYED = ("replay", "sampled")
UNEXPLAINED = {"read": (0.03, 200_000), "write": (0.05, 2_000_000)}
"""Share and bytes, whichever is more, that replays are off where the L2's constants were measured: of 95 % of recorded
rows on an H200 (docs/validation.md)."""


@dataclass(frozen=True)
class HbmRange:
    """Least and most bytes between L2 and HBM.

    Attributes:
        read: least and most bytes read.
        write: likewise written.
        constants: of the L2, borrowed, with the least and the most that is known of any GPU.
    """

    read: tuple[int, int]
    write: tuple[int, int]
    constants: Mapping[str, tuple[float, float]]

    @property
    def total(self) -> tuple[int, int]:
        """Bytes read and written."""
        return self.read[0] + self.write[0], self.read[1] + self.write[1]

    def to_dict(self) -> dict[str, Any]:
        """As the command line's JSON has it."""
        return {"hbm": {"read": list(self.read), "write": list(self.write)},
                "constants": {name: list(values) for name, values in self.constants.items()}}  # fmt: skip


def range_of(call: Call, method: str, l2_start: str, found: tuple[int, int], heads: bool = False) -> HbmRange | None:
    """The range of a call whose replay found so many bytes read and written; None where no L2 was played, or its
    constants are the GPU's own.

    Args:
        heads: some heads were played for all.
    """
    if method not in REPLAYED:
        return None
    constants = {name: L2_KNOWN[name] for name in borrowed_l2(call.profile)}
    if not constants:
        return None
    several = [found]
    if memory(call.chain)["peak"] * ROOMY > call.profile.need("l2_bytes"):
        play = _play(call, method, l2_start, heads)
        several += [_again(call, profile, play) for profile in extremes(call.profile, constants)]
    read, write = (
        (_below(min(one), *UNEXPLAINED[direction]), _above(max(one), *UNEXPLAINED[direction]))
        for one, direction in zip(zip(*several, strict=True), DIRECTIONS, strict=True)
    )
    if l2_start == "cold":  # no L2 spares these
        read = max(read[0], min(call.bounds.compulsory_read, found[0])), read[1]
    return HbmRange(read, write, constants)


def _below(least: int, share: float, bytes_: int) -> int:
    return max(0, int(least - max(share * least, bytes_)))


def _above(most: int, share: float, bytes_: int) -> int:
    return int(most + max(share * most, bytes_))


def extremes(profile: HardwareProfile, constants: Mapping[str, tuple[float, float]]) -> list[HardwareProfile]:
    """The GPU with an L2 that holds least, and with one that holds most; each once, and not as it is."""
    least = {name: values[1] if name == "l2_partitions" else values[0] for name, values in constants.items()}
    most = {name: values[0] if name == "l2_partitions" else values[1] for name, values in constants.items()}
    return [replace(profile, **one) for one in (least, most) if one != {name: getattr(profile, name) for name in one}]  # type: ignore[arg-type]


def _play(call: Call, method: str, l2_start: str, heads: bool) -> Play:
    """What of the call was played."""
    from iosim.readers.replay.heads import head_share
    from iosim.readers.replay.play import Play

    if not heads:
        return Play(l2_start=l2_start, part=method != "replay")
    share = head_share(call.chain, tile_accesses(call.chain), int(call.profile.need("l2_bytes")))
    return Play(l2_start=l2_start, share=share)


def _again(call: Call, profile: HardwareProfile, play: Play) -> tuple[int, int]:
    """(bytes read, bytes written) of the same call on such a GPU."""
    traffic = Replays().of(Call.of(call.problem, call.kernel, profile, call.chain), play).traffic
    return int(traffic.total("hbm", "read")), int(traffic.total("hbm", "write"))
