"""What of a call is replayed, and from which L2.

Chains over score matrices are played with some of their heads, which stand for all. Heads that do the same one after
the other move equally many bytes once the tensors of those that are played outgrow the L2 many times. What a launch
finds there of the one before it is at most what the L2 holds, and that is the size of the error.
"""

from __future__ import annotations

from iosim.base.records import dataclass, replace
from iosim.kernel.launch import Chain, Launch, Outer, Tensor
from iosim.kernel.schedule import Order
from iosim.readers.replay.l2 import L2Model
from iosim.readers.replay.objects import about_bytes

PLAYED_ACCESSES = 6_000_000
"""Tile accesses of the heads that are played, about, where a head has fewer: one or two seconds."""
MOST_ACCESSES = 30_000_000
"""And at most: a head with more is not played."""
OUTGROWN = 64
"""How many times the largest tensor of the heads that are played outgrows the L2, at least."""
SHARED_BYTES = 800_000_000
"""Memory that a replay of the heads that are played takes, about, before their products go in deeper steps. A matrix that
two products walk in steps of 64, one along its rows and one along its columns, is cut into blocks of 64 x 64."""
DEEPEST = 4
"""Steps of a product in one, at most: a block of 256 x 256 scores is what an elementwise pass holds on an SM."""
ERROR = 0.03
"""What HBM bytes may be off by: all chains of docs/replay.md that were also played whole are closer."""


@dataclass(frozen=True)
class PlayedHeads:
    """`heads` of the `of` heads of a chain were played."""

    heads: int
    of: int


@dataclass(frozen=True)
class HeadShare(PlayedHeads):
    """`chain` is the first `heads` of `of` heads of another chain; each of its launches stands for `factors` times as
    much."""

    chain: Chain
    factors: tuple[float, ...]
    depth: int = 1
    """Steps of a product that are played as one."""


@dataclass(frozen=True, kw_only=True)
class Play:
    """How a chain is played through the L2."""

    l2_start: str = "cold"
    """cold: empty, but for dirty lines that a flush leaves; warm: as the same call just before left it, its dirty lines
    with it."""
    l2_model: L2Model | None = None
    """In place of the profile's."""
    part: bool = False
    """Long launches in coarse steps, or windows of them alone; the replay says how far off that may be."""
    share: HeadShare | None = None
    """These heads of the chain alone; what they move stands for all."""
    drift: str = "usual"
    """How far CTAs part: usual; least, where SMs and steps take equally long; most, where each SM has a speed of its
    own and a miss holds nobody up."""
    accesses: int | None = None
    """With `part`, how many object accesses of a long launch are played, about; None: a second's worth."""


def head_share(chain: Chain, accesses: int, l2_bytes: int) -> HeadShare | None:
    """The heads that stand for all of a chain; None where they cannot. `accesses`: tile accesses of the whole chain.
    `l2_bytes`: what the L2 holds."""
    if any(tensor.shared_rows for tensor in chain.tensors.values()):
        return None  # sequences that share keys do not stand for one another
    batch = max(launch.domain.batch for launch in chain.launches)
    heads = max(launch.domain.heads for launch in chain.launches)
    group = max(
        1, heads // min((t.heads for t in chain.tensors.values() if t.heads > 1), default=1)
    )
    # Whole groups of query heads, so that a key/value head is played with all that read it.
    affordable = PLAYED_ACCESSES * batch * heads // max(1, accesses)
    played = max(1, min(affordable, heads) // group) * group
    if played >= batch * heads or accesses * played > MOST_ACCESSES * batch * heads:
        return None
    # Two conditions: the heads played outgrow the L2 by far, and every launch goes head by head.
    fewer = {name: _fewer_of(tensor, played, heads) for name, tensor in chain.tensors.items()}
    if None in fewer.values() or max(t.bytes for t in fewer.values() if t) < OUTGROWN * l2_bytes:
        return None
    launches, factors = [], []
    for launch in chain.launches:
        d = launch.domain
        # A launch without heads of its own (over tokens, say) is played whole, where none of its
        # tensors has become smaller.
        by_head = d.grid_heads > 1 or heads == 1
        if not by_head and any(fewer[a.tensor] != chain.tensors[a.tensor] for a in launch.accesses):
            return None
        if by_head and not (
            _one_by_one(launch) and d.batch == batch and d.heads * played % heads == 0
        ):
            return None
        launches.append(
            replace(launch, domain=replace(d, batch=1, heads=d.heads * played // heads))
            if by_head
            else launch
        )
        factors.append(batch * heads / played if by_head else 1.0)
    tensors = {name: tensor for name, tensor in fewer.items() if tensor is not None}
    shared = Chain(tensors, tuple(launches))
    depth = 1
    while depth < DEEPEST and about_bytes(_in_deep_steps(shared, depth)) > SHARED_BYTES:
        depth *= 2
    return HeadShare(played, batch * heads, _in_deep_steps(shared, depth), tuple(factors), depth)


def _in_deep_steps(chain: Chain, depth: int) -> Chain:
    """The chain with `depth` steps of each product as one: fewer and larger blocks of the score matrices."""
    if depth == 1:
        return chain
    launches = []
    for launch in chain.launches:
        d = launch.domain
        if launch.outer is Outer.QUERY:
            d = replace(d, block_k=d.block_k * depth)
        elif launch.outer is Outer.KEY:
            d = replace(d, block_q=d.block_q * depth)
        launches.append(replace(launch, domain=d))
    return replace(chain, launches=tuple(launches))


def _fewer_of(tensor: Tensor, played: int, heads: int) -> Tensor | None:
    """A tensor of the heads that are played; None where those are no whole heads of it."""
    if tensor.heads == 1:
        return replace(tensor, batch=1)
    heads_played, rest = divmod(tensor.heads * played, heads)
    return None if rest else replace(tensor, batch=1, heads=heads_played)


def _one_by_one(launch: Launch) -> bool:
    """True where a launch goes through its heads one after the other, the same in each."""
    d, schedule = launch.domain, launch.schedule
    return (
        launch.outer is not Outer.HEAD
        and schedule.order is not Order.HEAD
        and schedule.section_heads == 0
        and d.splits == 1
        and d.sequences == 1
    )
