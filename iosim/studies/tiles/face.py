"""A ranking's answer: the fastest tile, what it takes, and why the others do not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from iosim.base.units import bytes_text, seconds_text, some
from iosim.base.words import sentences
from iosim.hardware.trust import evidence
from iosim.studies.tiles.pick import TileCandidate, TileRanking

LIMITS = {"registers": "registers", "shared": "shared memory", "threads": "threads"}
"""A word in the reason of a rejection, and what it stands for, the first that occurs."""


def answer(rankings: Sequence[TileRanking]) -> str:
    """A sentence a GPU and length."""
    return " ".join(map(_sentence, rankings))


def _sentence(r: TileRanking) -> str:
    layers = "" if r.layers is None else f", for {r.layers},"
    where = f"On {r.profile.name} at {some(r.problem.seq_q, 'token')} and head_dim {r.problem.head_dim}{layers}"
    if not r.candidates:
        return f"{where} no tile fits: for the first, {r.rejected[0].reason}."
    best = r.best
    spilled = f", {best.spilled_bytes} bytes of a thread's registers spilled" * (best.spilled_bytes > 0)
    few = "one tile that fits" if len(r.candidates) == 1 else f"fastest of the {len(r.candidates):,} tiles that fit"
    parts = [f"{where} the {few} is {_named(best)}: {_cost(best)}{spilled}"]
    if r.library:
        first = r.library[0]
        parts.append(f"The fastest library kernel, {first.kernel} with its {first.tile}, takes {_cost(first)}")
    if r.rejected:
        others = "Another does" if len(r.rejected) == 1 else f"{len(r.rejected)} others do"
        parts.append(f"{others} not fit{_mostly(r)}")
    times = next(basis for basis in evidence(r.profile).bases if basis.model == "time")
    checked = "checked there" if times.validated_by else "not checked there"
    parts += [f"Times by a model {checked}", f"Its numbers: {times.summary}"]
    return sentences(parts)


def _named(c: TileCandidate) -> str:
    return f"{c.tile} with {some(c.tile.warps, 'warp')} and {c.tile.stages} stage{'s' * (c.tile.stages != 1)}"


def _cost(c: TileCandidate) -> str:
    l2, hbm = c.l2_read_bytes + c.l2_write_bytes, c.hbm_read_bytes + c.hbm_write_bytes
    return (f"{seconds_text(c.time_s)}, bound by {c.bound_by}, {bytes_text(l2)} between SMs and L2 and "
            f"{bytes_text(hbm)} at HBM")  # fmt: skip


def _mostly(r: TileRanking) -> str:
    """What stops most of the rejected tiles, where it is more than half of them."""
    counted = Counter(next((name for word, name in LIMITS.items() if word in t.reason), "") for t in r.rejected)
    name, n = counted.most_common(1)[0]
    return f", {n} of them for {name}" if name and 2 * n > len(r.rejected) else ""
