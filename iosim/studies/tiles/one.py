"""Everything about a tile of one's own choice: whether it fits, what it is short of, its rank, and the nearest tile
that fits. Why tiles do not fit, by reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from math import log2
from typing import Any

from iosim.base.records import dataclass, plain
from iosim.base.units import bytes_text, seconds_text, some
from iosim.base.words import sentences
from iosim.hardware.trust import evidence
from iosim.kernel.kernel import Tile
from iosim.prediction.confidence import in_dtype
from iosim.show.tables import grouped
from iosim.studies.tiles import pick
from iosim.studies.tiles.pick import PlannedTile, RejectedTile, TileCandidate, TileRanking

NUMBER = re.compile(r"\d[\d,]*")
SHORT_OF = re.compile(r"needs (?:about )?([\d,]+) ([a-z ]+?)(?:, sm_\d+ allows|, at most) ([\d,]+)")
"""How a reason says what a tile needs and what there is."""


@dataclass(frozen=True)
class TileStudy:
    """A tile's sides with each number of warps and stages: those that fit with their ranks, the others with reasons.
    `nearest` is the tile of the ranking that is closest in its sides, the faster of two; None where this tile fits, or
    nothing does."""

    profile: str
    block_q: int
    block_k: int
    ranked: tuple[tuple[int, TileCandidate], ...]
    rejected: tuple[RejectedTile, ...]
    nearest: tuple[int, TileCandidate] | None
    of: int
    """Tiles that fit, in the ranking."""
    dtype: str
    """The type of the inputs, in words: " in fp16"."""

    def __repr__(self) -> str:
        return f"<TileStudy: {self.answer}>"

    @property
    def fits(self) -> bool:
        return bool(self.ranked)

    @property
    def answer(self) -> str:
        """How the tile ranks, or what it is short of if it does not fit, in a sentence or two."""
        name = f"{self.block_q}x{self.block_k}"
        if self.ranked:
            rank, best = self.ranked[0]
            read, hbm = best.l2_read_bytes, best.hbm_read_bytes + best.hbm_write_bytes
            place = f"{name} fits on {self.profile}{self.dtype}, and is {self._place(rank)} with {_how(best.tile)}"
            return f"{place}: {seconds_text(best.time_s)}, {bytes_text(read)} read from L2, {bytes_text(hbm)} of HBM"
        # The variant that lacks least: reasons with a number first, by what is too much.
        closest = min(
            self.rejected, key=lambda r: (not excess(r.reason), sum(excess(r.reason).values()))
        )
        text = f"{name} does not fit on {self.profile}{self.dtype}: {closest.reason}{excess_text(closest.reason)}"
        if self.nearest is not None:
            rank, tile = self.nearest
            text += f". The nearest that fits is {tile.tile} with {_how(tile.tile)}, {self._place(rank)}"
        return text

    def _place(self, rank: int) -> str:
        return "the only one" if self.of == 1 else f"number {rank} of {self.of}"

    def to_dict(self) -> dict[str, Any]:
        """Plain types; `excess` is what a rejected tile needs beyond what there is, by resource."""
        nearest = (
            None if self.nearest is None else {"rank": self.nearest[0], **self.nearest[1].to_dict()}
        )
        ranked = [{"rank": rank, **candidate.to_dict()} for rank, candidate in self.ranked]
        rejected = [r.to_dict() | {"excess": excess(r.reason)} for r in self.rejected]
        tiles = {"ranked": ranked, "rejected": rejected, "nearest": nearest}
        return (
            plain(block_q=self.block_q, block_k=self.block_k, fits=self.fits, answer=self.answer)
            | tiles
        )


def study_tile(
    ranking: TileRanking,
    sides: tuple[int, int],
    matrix_unit: str = "mma.sync",
    *,
    warps: int | None = None,
    stages: int | None = None,
) -> TileStudy:
    """What there is to say of a tile beside the `ranking` of all that are tried; it need not be one of them."""
    unit = pick.unit_of(ranking.problem, matrix_unit)
    known = {
        c.tile: (rank, c) for rank, c in enumerate(ranking.candidates, 1) if c.method != pick.QUICK
    }
    ranked, rejected, planned = [], [], []
    for w, s in product(
        pick.WARPS if warps is None else (warps,), pick.STAGES if stages is None else (stages,)
    ):
        tile = Tile(*sides, w, s)
        report = ranking.reports.get(tile)
        # A tile that the ranking has replayed is taken from there; any other is planned here.
        tried = known.get(tile) or (
            pick.try_tile(tile, ranking.problem, ranking.profile, unit, report)
            if ranking.of_kernel is None
            else ranking.of_kernel.try_tile(tile)
        )
        if isinstance(tried, str):
            rejected.append(RejectedTile(tile, tried))
        elif isinstance(tried, PlannedTile):
            planned.append(tried)
        else:
            ranked.append(tried)
    ranked += [
        (_rank(ranking, replayed.candidate), replayed.candidate)
        for replayed in pick.replayed_tiles(planned)
    ]
    nearest = _nearest(ranked, ranking, sides)
    ranked.sort(key=lambda pair: pair[0])
    return TileStudy(
        ranking.profile.name,
        *sides,
        tuple(ranked),
        tuple(rejected),
        nearest,
        len(ranking.candidates),
        in_dtype(ranking.problem, ranking.profile),
    )


def _nearest(
    ranked: Sequence[tuple[int | None, TileCandidate]], ranking: TileRanking, sides: tuple[int, int]
) -> tuple[int, TileCandidate] | None:
    """The ranked tile that is nearest, in doublings of either side; of equals the better rank."""
    nearest = None
    if not ranked and ranking.candidates:

        def away(pair: tuple[int, TileCandidate]) -> tuple[float, int]:
            tile = pair[1].tile
            # Distance in doublings of either side; of equals the better rank.
            return abs(log2(tile.block_q / sides[0])) + abs(log2(tile.block_k / sides[1])), pair[0]

        nearest = min(enumerate(ranking.candidates, 1), key=away)
    return nearest


def _rank(ranking: TileRanking, candidate: TileCandidate) -> int:
    """Where a tile stands whose replay is no part of the ranking."""
    others = (other for other in ranking.candidates if other.tile != candidate.tile)
    return 1 + sum(pick.by_time(other) < pick.by_time(candidate) for other in others)


def _how(tile: Tile) -> str:
    return f"{some(tile.warps, 'warp')} and {some(tile.stages, 'stage')}"


def whole(text: str) -> int:
    return int(text.replace(",", ""))


def excess(reason: str) -> dict[str, int]:
    """What a tile needs beyond what there is, by resource: {"bytes of shared memory": 29_696}."""
    return {
        resource: whole(needed) - whole(limit)
        for needed, resource, limit in SHORT_OF.findall(reason)
    }


def excess_text(reason: str) -> str:
    """What a tile is short of in words, to follow the reason; empty where the reason is no shortage."""
    parts = [f"{surplus:,} {resource} too many" for resource, surplus in excess(reason).items()]
    return f" ({', '.join(parts)})" if parts else ""


@dataclass(frozen=True)
class Rejections:
    """Tiles that are rejected for one reason; its numbers are ranges where they differ from tile to tile."""

    reason: str
    tiles: tuple[Tile, ...]


def by_reason(rejected: Iterable[RejectedTile]) -> list[Rejections]:
    """The rejected tiles by reason, the most frequent first."""
    ordered = sorted(
        grouped(rejected, lambda tile: NUMBER.sub("#", tile.reason)).values(), key=len, reverse=True
    )
    return [
        Rejections(_ranged([r.reason for r in group]), tuple(r.tile for r in group))
        for group in ordered
    ]


def _ranged(reasons: list[str]) -> str:
    # Reasons of a group differ in their numbers alone: each becomes the range over the group.
    columns = zip(*(NUMBER.findall(reason) for reason in reasons), strict=True)
    ranges = iter([sorted(set(column), key=whole) for column in columns])

    def shown(_: re.Match[str]) -> str:
        numbers = next(ranges)
        return numbers[0] if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"

    return NUMBER.sub(shown, reasons[0])


def tiles_answer(rankings: Sequence[TileRanking]) -> str:
    return "\n".join(map(_sentence, rankings))


def _sentence(r: TileRanking) -> str:
    layers = "" if r.layers is None else f", for {r.layers},"
    where = f"On {r.profile.name}{layers}{in_dtype(r.problem, r.profile)}"
    if not r.candidates:
        return f"{where} no tile fits: for the first, {r.rejected[0].reason}."
    best = r.best
    spilled = (
        f", {best.spilled_bytes} bytes of a thread's registers spilled"
        if best.spilled_bytes
        else ""
    )
    name = f"{r.of_kernel.kernel.name} " if r.of_kernel is not None else ""
    parts = [
        f"{where} {name}{best.tile} with {_how(best.tile)} {_place_of_best(r)}: {_time(best)}{spilled}"
    ]
    if r.library and r.of_kernel is not None:
        parts.append(f"The library's tile, {r.library[0].tile}, takes {_time(r.library[0])}")
    elif r.library:
        first = r.library[0]
        parts.append(
            f"The fastest library kernel, {first.kernel} {first.tile}, takes {_time(first)}"
        )
    times = next(basis for basis in evidence(r.profile).bases if basis.model == "time")
    checked = "checked there" if times.validated_by else "not checked there"
    return sentences([*parts, f"Times {checked}"])


def _place_of_best(r: TileRanking) -> str:
    """The rank of the best tile in words: alone, ahead of all by more than the model's error, or one of several that
    tie."""
    fit, others = len(r.candidates), len(r.ties) - 1
    if fit == 1:
        return "is the one tile that fits"
    if not others:
        return f"is fastest of {fit:,} tiles that fit"
    return f"ties with {some(others, 'other')} of {fit:,} tiles that fit"


def beneath(r: TileRanking) -> str:
    """What stands under the answer: what both move, how many others do not fit, and what times rest on."""
    if not r.candidates:
        return ""
    parts = [f"{r.best.tile} moves {_moved(r.best)}"]
    if len(r.ties) > 1:
        parts.append(
            f"Tiles tie within {pick.TIED_PERCENT} %, the model's mean error of their times"
        )
    parts += (
        [f"{r.library[0].kernel} {r.library[0].tile} moves {_moved(r.library[0])}"]
        if r.library
        else []
    )
    if r.rejected:
        others = "Another does" if len(r.rejected) == 1 else f"{len(r.rejected)} others do"
        limits = {"registers": "registers", "shared": "shared memory", "threads": "threads"}
        counted = Counter(
            next((name for word, name in limits.items() if word in t.reason), "")
            for t in r.rejected
        )
        # The limit that rejects more than half of the tiles is named.
        name, n = counted.most_common(1)[0]
        parts.append(
            f"{others} not fit"
            + (f", {n} of them for {name}" if name and 2 * n > len(r.rejected) else "")
        )
    times = next(basis for basis in evidence(r.profile).bases if basis.model == "time")
    return sentences([*parts, f"The time model's numbers for {r.profile.name}: {times.summary}"])


def _time(c: TileCandidate) -> str:
    return f"{seconds_text(c.time_s)}, bound by {c.bound_by}"


def _moved(c: TileCandidate) -> str:
    l2, hbm = c.l2_read_bytes + c.l2_write_bytes, c.hbm_read_bytes + c.hbm_write_bytes
    return f"{bytes_text(l2)} between SMs and L2 and {bytes_text(hbm)} at HBM"
