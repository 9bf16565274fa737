"""Frames of local memory in the replay: where those of resident CTAs lie, and when a work tile stores and loads them.

Local memory belongs to the threads that are resident: the next CTA in their place stores to the same addresses. What a
described kernel spills is stored as a whole at every step, or once a work tile. Of a kernel whose code was read it is
known which words are stored and loaded where in a turn of its loop: a few of them stand for all, each for a part of the
frame, so that a word that is needed soon is looked for soon.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iosim.base.arrays import repeated, tallied
from iosim.base.records import replace
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.launch import SPILL, FrameUse, Launch, Mode, Overhead
from iosim.kernel.touched import Int32
from iosim.readers.replay.templates import LAST_LOAD, MODES

FRAMES_THAT_FILL = 0.5
"""Frames of resident CTAs over the written lines that an L2 keeps, from which on frames decide how fast CTAs go; fitted: 0.44
does not, 0.64 does (h200_walks.csv)."""
MOST_USES = 6_000_000
"""Loads and stores of frames that are played, about: beyond them fewer parts stand for all."""
LINE_BYTES = 128
"""Parts of a frame begin at lines."""
GOLDEN = 0.618033988749895
"""Of loads that L1 serves now and then, each part's misses fall into other turns."""


def spills(launch: Launch, mode: Mode) -> Overhead | None:
    """What a launch stores in frames or loads from them; None where it does not."""
    found = [o for o in launch.overheads if o.name == SPILL and o.mode is mode]
    if not found:
        return None
    sums = {name: sum(getattr(o, name) for o in found) for name in ("per_tile", "per_pair")}
    return replace(found[0], **sums, frame=max(o.frame for o in found))


def resident_frame_bytes(launch: Launch, slots: int) -> int:
    """Bytes of the frames of `slots` CTAs."""
    stored = spills(launch, Mode.STORE)
    return stored.frame * slots if stored is not None else 0


def frames_fill_l2(launch: Launch, slots: int, profile: HardwareProfile) -> bool:
    """True where frames take so much of the L2 that they decide how fast CTAs go, and so what HBM moves. Raises InputError:
    the profile lacks a number."""
    frames = resident_frame_bytes(launch, slots)
    if not frames:
        return False
    return frames >= FRAMES_THAT_FILL * profile.need("l2_bytes") * profile.need("l2_dirty_fraction")


def frame_parts(launch: Launch) -> tuple[int, ...]:
    """Bytes of the local memory of a CTA's threads that a step of its loop stores into, and of the rest of their stack
    frames, which a work tile stores into once; none where no register is spilled. Where the frame is not known, each
    part is as large as what is stored there once."""
    stored = spills(launch, Mode.STORE)
    if stored is None:
        return ()
    step = min(stored.per_pair, stored.frame or stored.per_pair)
    return max(0, step), max(0, stored.frame - step if stored.frame else stored.per_tile)


def frame_objects(launch: Launch, slots: int) -> tuple[Int32, ...]:
    """Sizes of the objects that the frames of `slots` resident CTAs are, by part of `frame_parts`; of a launch whose
    code was read a CTA's parts stand side by side."""
    parts = frame_parts(launch)
    if launch.touched is None or not parts:
        return tuple(np.full(slots if part else 0, part, dtype=np.int32) for part in parts)
    number, size = played_uses(launch)[0], max(parts)
    piece = -(-size // (number * LINE_BYTES)) * LINE_BYTES if number > 1 else size
    return (np.full(slots * number, piece, dtype=np.int32),)


def played_uses(launch: Launch) -> tuple[int, tuple[FrameUse, ...], int]:
    """Parts of a frame that are played, what a turn does with them, and turns of a work tile, of a launch whose code
    was read. Where nothing is known of words the frame is stored as a whole, and loaded behind it."""
    stored, loaded = spills(launch, Mode.STORE), spills(launch, Mode.LOAD)
    if stored is None or launch.touched is None:
        return 1, (), 0
    number, uses = stored.parts, stored.uses
    if not any(use.mode is Mode.STORE for use in uses):
        share = loaded.per_tile / stored.per_tile if loaded is not None and stored.per_tile else 0
        back = FrameUse(0, 0.0, Mode.LOAD, min(1.0, share))
        number, uses = 1, (back, FrameUse(0, 0.5, Mode.STORE))
    while True:
        stores = sum(use.mode is Mode.STORE for use in uses)
        # What a work tile stores over what a turn does.
        of_turn = stores * (stored.frame or stored.per_tile) / number
        turns = max(1, round(stored.per_tile / max(1.0, of_turn)))
        if number == 1 or launch.touched.first.size * turns * len(uses) <= MOST_USES:
            return number, uses, turns
        number //= 2
        uses = tuple(
            replace(use, part=use.part // 2)
            for use in uses
            if use.part % 2 and use.part // 2 < number
        )


def with_frames(
    launch: Launch,
    indices: Int32,
    first: Int32,
    count: Int32,
    frame: npt.NDArray[np.int64],
    objects: int,
) -> tuple[Int32, Int32, Int32]:
    """A work tile's steps with those in which it loads and stores its threads' frame, spread evenly over the others:
    (the entries of all work tiles, each work tile's first, its number of entries).

    Args:
        indices: the entries without frames; an entry is an object's number plus its mode's times `objects`.
        first, count: each work tile's entries in `indices`.
        frame: the first object of each work tile's frame.
        objects: over how many numbers the entries of one mode go.
    """
    _, uses, turns = played_uses(launch)
    # One row for each turn of each work tile, one column for each use.
    times = np.where(count > 0, turns, 0)
    tile = repeated(np.arange(count.size), times)
    turn = np.arange(tile.size) - repeated(np.cumsum(times) - times, times)
    at = np.array([use.at for use in uses])
    part, mode = np.array([use.part for use in uses]), np.array([_mode(use) for use in uses])
    share = np.array([use.share if use.mode is Mode.LOAD else 1.0 for use in uses])
    # The k-th turn of n stands from k/n to (k + 1)/n of the way through the work tile's other steps.
    passed = (turn[:, None] + at) * count[tile][:, None] / max(1, turns)
    places = first[tile][:, None] + passed.astype(np.int64)
    values = (frame[tile][:, None] + part + mode * objects).astype(np.int32)
    # Loads that L1 serves in part are made in so many of the turns (as a line of slope `share` is
    # drawn in whole steps), and nothing is loaded before it is stored once.
    before = turn[:, None] * share + part * GOLDEN % 1
    is_made = np.floor(before + share) > np.floor(before)
    stored_from = {use.part: use.at for use in reversed(uses) if use.mode is Mode.STORE}
    early = np.array(
        [use.mode is Mode.LOAD and use.at <= stored_from.get(use.part, 1.0) for use in uses]
    )
    is_made &= ~((turn == 0)[:, None] & early)
    entries = np.insert(indices, places[is_made], values[is_made]).astype(np.int32)
    uses_made = tallied(tile, weights=is_made.sum(axis=1), minlength=count.size)
    entries_of_tile = (count + uses_made).astype(np.int32)
    first_entry = (np.cumsum(entries_of_tile) - entries_of_tile).astype(np.int32)
    return entries, first_entry, entries_of_tile


def _mode(use: FrameUse) -> int:
    """The engine's number of a use."""
    return LAST_LOAD if use.last and use.mode is Mode.LOAD else MODES[use.mode]
