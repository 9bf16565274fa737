"""Everything about a tile of one's own choice: whether it fits, what it is short of, its rank, and the nearest tile
that fits. Why tiles do not fit, by reason."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import log2
from typing import Any

from iosim.base.units import bytes_text, seconds_text
from iosim.kernel.kernel import Tile
from iosim.studies.tiles.pick import (
    QUICK,
    PlannedTile,
    RejectedTile,
    TileCandidate,
    TileRanking,
    by_time,
    replayed_tiles,
    try_tile,
    unit_of,
)
from iosim.studies.tiles.space import STAGES, WARPS

NUMBER = re.compile(r"\d[\d,]*")
SHORT_OF = re.compile(r"needs (?:about )?([\d,]+) ([a-z ]+?)(?:, sm_\d+ allows|, at most) ([\d,]+)")
"""How a reason says what a tile needs and what there is."""


@dataclass(frozen=True)
class TileStudy:
    """A tile's sides with each number of warps and stages: those that fit with their ranks, the others with reasons.

    `nearest` is the tile of the ranking that is closest in its sides, the faster of two; None where this tile fits, or
    nothing does.
    """

    profile: str
    block_q: int
    block_k: int
    ranked: tuple[tuple[int, TileCandidate], ...]
    rejected: tuple[RejectedTile, ...]
    nearest: tuple[int, TileCandidate] | None
    of: int
    """Tiles that fit, in the ranking."""

    def __repr__(self) -> str:
        return f"<TileStudy: {self.answer}>"

    @property
    def fits(self) -> bool:
        """Whether some choice of warps and stages fits."""
        return bool(self.ranked)

    @property
    def answer(self) -> str:
        """Whether the tile fits, and how it ranks or what it is short of, in a sentence or two."""
        name = f"{self.block_q}x{self.block_k}"
        if self.ranked:
            rank, best = self.ranked[0]
            read, hbm = best.l2_read_bytes, best.hbm_read_bytes + best.hbm_write_bytes
            place = f"{name} fits on {self.profile}, and is {self._place(rank)} with {_how(best.tile)}"
            return f"{place}: {seconds_text(best.time_s)}, {bytes_text(read)} read from L2, {bytes_text(hbm)} of HBM"
        closest = min(self.rejected, key=lambda r: _excess(r.reason))
        why = f"{closest.reason}{excess_text(closest.reason)}, with {_how(closest.tile)}"
        text = f"{name} does not fit on {self.profile}: {why}"
        if self.nearest is not None:
            rank, tile = self.nearest
            text += f". The nearest that fits is {tile.tile} with {_how(tile.tile)}, {self._place(rank)}"
        return text

    def _place(self, rank: int) -> str:
        return "the only one" if self.of == 1 else f"number {rank} of {self.of}"

    def to_dict(self) -> dict[str, Any]:
        """Plain types; `excess` is what a rejected tile needs beyond what there is, by resource."""
        nearest = None if self.nearest is None else {"rank": self.nearest[0], **self.nearest[1].to_dict()}
        return {
            "block_q": self.block_q, "block_k": self.block_k, "fits": self.fits, "answer": self.answer,
            "ranked": [{"rank": rank, **candidate.to_dict()} for rank, candidate in self.ranked],
            "rejected": [r.to_dict() | {"excess": excess(r.reason)} for r in self.rejected],
            "nearest": nearest,
        }  # fmt: skip


def study_tile(
    ranking: TileRanking, sides: tuple[int, int], matrix_unit: str = "mma.sync", *, warps: int | None = None,
    stages: int | None = None,
) -> TileStudy:  # fmt: skip
    """What there is to say of a tile beside the `ranking` of all that are tried; it need not be one of them."""
    unit = unit_of(ranking.problem, matrix_unit)
    known = {c.tile: (rank, c) for rank, c in enumerate(ranking.candidates, 1) if c.method != QUICK}
    ranked, rejected, planned = [], [], []
    for tile in (Tile(*sides, w, s) for w in _choices(warps, WARPS) for s in _choices(stages, STAGES)):
        tried = known.get(tile) or try_tile(tile, ranking.problem, ranking.profile, unit, ranking.reports.get(tile))
        if isinstance(tried, str):
            rejected.append(RejectedTile(tile, tried))
        elif isinstance(tried, PlannedTile):
            planned.append(tried)
        else:
            ranked.append(tried)
    ranked += [(_rank(ranking, one.candidate), one.candidate) for one in replayed_tiles(planned)]
    nearest = None
    if not ranked and ranking.candidates:
        ranks = enumerate(ranking.candidates, 1)
        nearest = min(ranks, key=lambda pair: (_distance(pair[1].tile, sides), pair[0]))
    ranked.sort(key=lambda pair: pair[0])
    return TileStudy(ranking.profile.name, *sides, tuple(ranked), tuple(rejected), nearest, len(ranking.candidates))


def _choices(asked: int | None, usual: tuple[int, ...]) -> tuple[int, ...]:
    return usual if asked is None else (asked,)


def _rank(ranking: TileRanking, candidate: TileCandidate) -> int:
    """Where a tile stands whose replay is no part of the ranking."""
    others = (other for other in ranking.candidates if other.tile != candidate.tile)
    return 1 + sum(by_time(other) < by_time(candidate) for other in others)


def _distance(tile: Tile, sides: tuple[int, int]) -> float:
    return abs(log2(tile.block_q / sides[0])) + abs(log2(tile.block_k / sides[1]))


def _how(tile: Tile) -> str:
    return f"{tile.warps} warp{'s' * (tile.warps > 1)} and {tile.stages} stage{'s' * (tile.stages > 1)}"


def excess(reason: str) -> dict[str, int]:
    """What a tile needs beyond what there is, by resource: {"bytes of shared memory": 29_696}."""
    return {what: _number(needed) - _number(most) for needed, what, most in SHORT_OF.findall(reason)}


def excess_text(reason: str) -> str:
    """The same in words, to follow the reason; empty where the reason is no shortage."""
    parts = [f"{most:,} {what} too many" for what, most in excess(reason).items()]
    return f" ({', '.join(parts)})" if parts else ""


def _excess(reason: str) -> tuple[int, int]:
    """Sorts reasons: those that miss least last resource first."""
    short = excess(reason)
    return (0 if short else 1, sum(short.values()))


def _number(text: str) -> int:
    return int(text.replace(",", ""))


@dataclass(frozen=True)
class Rejections:
    """Tiles that are rejected for one reason; its numbers are ranges where they differ from tile to tile."""

    reason: str
    tiles: tuple[Tile, ...]


def by_reason(rejected: Iterable[RejectedTile]) -> list[Rejections]:
    """The rejected tiles by reason, the most frequent first."""
    groups: dict[str, list[RejectedTile]] = {}
    for one in rejected:
        groups.setdefault(NUMBER.sub("#", one.reason), []).append(one)
    ordered = sorted(groups.values(), key=len, reverse=True)
    return [Rejections(_ranged([r.reason for r in group]), tuple(r.tile for r in group)) for group in ordered]


def _ranged(reasons: list[str]) -> str:
    """Reasons that differ in their numbers alone, as one."""
    columns = zip(*(NUMBER.findall(reason) for reason in reasons), strict=True)
    ranges = iter([sorted(set(column), key=_number) for column in columns])

    def shown(_: re.Match[str]) -> str:
        numbers = next(ranges)
        return numbers[0] if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"

    return NUMBER.sub(shown, reasons[0])
