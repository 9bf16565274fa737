"""What a lowered launch moves, added up from its templates."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from counter import access_bytes

from iosim.kernel.launch import Chain, Edge, Launch
from iosim.readers.replay.lowering import Lowered, LoweredLaunch
from iosim.readers.replay.templates import Template


def loop_steps(low: LoweredLaunch) -> tuple[np.ndarray, np.ndarray]:
    """(work tile, loop index) of every step of a launch."""
    count = low.count.astype(np.int64)
    tile = np.repeat(np.arange(low.tiles), count)
    at = np.arange(tile.size) - np.repeat(np.cumsum(count) - count, count) + low.first[tile]
    return tile, at if low.indices is None else low.indices[at].astype(np.int64)


def objects_of(template: Template, tile: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Objects that a template moves at these steps, one row a step."""
    here = template.base[tile] >= 0
    if template.skips is not None and template.block is not None:
        here &= template.skips[index] != template.block[tile]
    index = index[here]
    head = index // template.turn if template.turn else 0
    start = template.base[tile][here].astype(np.int64) + template.turn_coef * head
    start += template.coef * (index - template.turn * head)
    inside = (
        np.arange(template.rows)[:, None] * template.row_stride + np.arange(template.span)[None, :]
    )
    return start[:, None] + inside.reshape(1, -1)


def moved(low: LoweredLaunch) -> Iterator[tuple[Template, np.ndarray]]:
    """(template, objects) of a launch, each access of an object once."""
    every = np.arange(low.tiles)
    steps = loop_steps(low)
    for template in (*low.prologue, *low.epilogue):
        yield template, objects_of(template, every, np.zeros_like(every))
    for template in low.loop:
        yield template, objects_of(template, *steps)


def is_exact(chain: Chain, launch: Launch, tensor: str) -> bool:
    """Whether objects hold just the bytes that the launch moves: no padding, no repeats that hit for sure."""
    uses = [a for a in launch.accesses if a.tensor == tensor]
    t = chain.tensors[tensor]
    same = not t.is_vector and t.row_bytes == t.cols * t.element_bytes
    return same and all((a.edge is Edge.EXACT or t.wraps) and a.times == 1 for a in uses)


def wrong_bytes(chain: Chain, lowered: Lowered) -> list[str]:
    """Tensors of which a lowered launch moves other bytes than `count` says, or objects of another tensor."""
    wrong = []
    owner = lowered.owner.copy()
    for number, (launch, low) in enumerate(zip(chain.launches, lowered.launches, strict=True)):
        sums: dict[str, int] = {}
        for objects, number in low.owned:
            owner[objects.start : objects.stop] = number
        for template, objects in moved(low):
            if (owner[objects] != lowered.tensors.index(template.tensor)).any():
                wrong.append(f"{launch.name} {template.tensor}: objects of another tensor")
            sums[template.tensor] = sums.get(template.tensor, 0) + int(
                lowered.size[objects].sum(dtype=np.int64)
            )
        joined = tuple(launch for launch in chain.launches[number + 1 : number + 2] if launch.joins)
        of = (
            () if launch.joins else (launch, *joined)
        )  # work tiles of one that joins are the launch's before
        for name in {a.tensor for launch in of for a in launch.accesses}:
            if not all(is_exact(chain, launch, name) for launch in of):
                continue
            uses = [
                (launch.domain, a) for launch in of for a in launch.accesses if a.tensor == name
            ]
            right = sum(access_bytes(d, chain.tensors[name], a) * d.grid_heads for d, a in uses)
            counted = round(
                sums.get(name, 0) * lowered.own_share[lowered.tensors.index(name)]
            )  # the rest of their lines is others'
            if counted != right:
                wrong.append(f"{launch.name} {name}: {sums.get(name, 0)} bytes, counted {right}")
    return wrong
