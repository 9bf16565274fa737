"""HBM traffic by the capacity rule: an estimate without replay.

Two questions decide it. For data that CTAs share (the keys and values of a head): do the heads in use at once fit in
the part of L2 that holds distinct shared lines, half of it where the L2 has two partitions? If so each is read once; if
not, every wave of CTAs reads what it uses again. For tensors passed from one launch to the next: does what is moved in
between fit in the L2? The rule knows nothing of drift between CTAs, grid order within a wave, or dirty lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from iosim.hardware.profile import HardwareProfile
from iosim.kernel.launch import Access, Chain, Launch, Mode, Outer, Per, Role, Rows, Tensor
from iosim.kernel.residency import Residency
from iosim.kernel.schedule import Order
from iosim.kernel.traffic import Traffic, TrafficRow


def shared_capacity_bytes(profile: HardwareProfile) -> int:
    """L2 bytes that hold distinct lines when all SMs read them: each partition keeps its own copy."""
    return int(profile.need("l2_bytes")) // profile.need_int("l2_partitions")


def _unique_bytes(launch: Launch, tensor: Tensor, access: Access) -> int:
    """Distinct bytes of a tensor that an access touches, over the whole launch."""
    if access.rows is Rows.KEY and access.per is Per.PAIR:
        d = launch.domain
        rows = int(d.key_rows[d.visitors.count > 0].sum())
        return tensor.bytes // tensor.rows * min(rows, tensor.rows)
    return tensor.bytes


def _reread_factor(launch: Launch, chain: Chain, profile: HardwareProfile, slots: int) -> float:
    """How many times the data shared along the loop is fetched from HBM: 1 where it fits."""
    looped = [a for a in launch.accesses if a.per is Per.PAIR and a.mode is Mode.LOAD and a.rows is not Rows.PAIR]
    if launch.outer not in (Outer.QUERY, Outer.KEY, Outer.SPLIT) or not looped:
        return 1.0
    domain = launch.domain
    tiles_per_head = max(1, launch.work_tiles // domain.grid_heads)
    heads = domain.grid_heads
    in_use_heads = min(float(heads), max(1.0, slots / tiles_per_head))
    if launch.schedule.order is Order.HEAD:
        in_use_heads = float(min(heads, slots, launch.schedule.section_heads or heads))
    streamed = {a.tensor: _unique_bytes(launch, chain.tensors[a.tensor], a) for a in looped}
    bytes_per_head = sum(streamed.values()) / heads
    if in_use_heads * bytes_per_head <= shared_capacity_bytes(profile):
        return 1.0
    waves_per_head = tiles_per_head * in_use_heads / slots
    visited_share = float(domain.visited.count.mean()) / max(1, domain.key_blocks_total)
    return max(1.0, waves_per_head * visited_share if launch.outer is Outer.QUERY else waves_per_head)


def _shared_passes(launch: Launch, chain: Chain, tensor: Tensor, profile: HardwareProfile, slots: int) -> float:
    """How many times an N x N tensor that several heads share (a bias, a mask) is fetched: once where it stays in L2
    beside what a head moves meanwhile, or where heads run fastest; else once for every round of heads in use."""
    domain, order = launch.domain, launch.schedule.order
    sharing = domain.grid_heads / (tensor.batch * tensor.heads)
    one = tensor.bytes if order is not Order.QUERY else tensor.bytes // (tensor.batch * tensor.heads)
    others = {a.tensor for a in launch.accesses} - {tensor.name}
    meanwhile = sum(chain.tensors[name].bytes for name in others) / domain.grid_heads
    if sharing <= 1 or one + meanwhile <= shared_capacity_bytes(profile):
        return 1.0
    if order is Order.HEAD:
        return max(1.0, sharing / min(slots, launch.schedule.section_heads or domain.grid_heads))
    return max(1.0, sharing / max(1.0, slots * domain.grid_heads / launch.work_tiles))


def _between_bytes(chain: Chain, tensor: str, launch: int) -> int | None:
    """Distinct bytes moved since the launch before `launch` that touched `tensor`; None if none did."""
    earlier = [n for n in chain.users(tensor) if n < launch]
    if not earlier:
        return None
    touched: set[str] = set()
    for n in range(earlier[-1], launch + 1):
        touched |= {a.tensor for a in chain.launches[n].accesses}
    return sum(chain.tensors[name].bytes for name in touched)


def estimate(chain: Chain, profile: HardwareProfile, counted: Traffic, residencies: Sequence[Residency]) -> Traffic:
    """HBM rows by launch and tensor under the capacity rule, from a cold L2, with all dirty lines written back.

    Args:
        counted: what the chain moves between SMs and L2; no tensor moves more at HBM.
        residencies: of each launch, in order.
    """
    whole = int(profile.need("l2_bytes"))
    rows: list[TrafficRow] = []
    for n, (launch, resident) in enumerate(zip(chain.launches, residencies, strict=True)):
        slots = resident.slots
        factor = _reread_factor(launch, chain, profile, slots)
        read: dict[str, int] = {}
        write: dict[str, int] = {}
        for access in launch.accesses:
            tensor = chain.tensors[access.tensor]
            unique = _unique_bytes(launch, tensor, access)
            between = _between_bytes(chain, access.tensor, n)
            passed_on = between is not None and between <= whole
            if access.mode is Mode.LOAD:
                looped = access.per is Per.PAIR and access.rows is not Rows.PAIR
                times = factor if looped and launch.outer is not Outer.FLAT else 1.0
                if access.rows is Rows.PAIR:
                    times = _shared_passes(launch, chain, tensor, profile, slots)
                fetched = 0 if passed_on and times == 1.0 else round(unique * times)
                read[access.tensor] = max(read.get(access.tensor, 0), fetched)
            else:
                stays = tensor.role is Role.TEMP and _stays(chain, access.tensor, n, whole)
                write[access.tensor] = max(write.get(access.tensor, 0), 0 if stays else tensor.bytes)
        most = {(r.tensor, r.direction): r.bytes for r in counted if r.launch == launch.name}
        for name, value in read.items():
            rows.append(TrafficRow(launch.name, "hbm", name, "read", min(value, most[name, "read"])))
        for name, value in write.items():
            rows.append(TrafficRow(launch.name, "hbm", name, "write", min(value, most[name, "write"])))
        spill = [o for o in launch.overheads if o.name == "spill" and o.mode is Mode.STORE]
        if spill:
            in_use = slots * sum(o.per_tile + o.per_pair for o in spill)
            spilled = int(counted.total("l2", "write", launch=launch.name, tensor="spill"))
            rows.append(TrafficRow(launch.name, "hbm", "spill", "write", 0 if in_use < whole else spilled))
    return Traffic(tuple(rows))


def _stays(chain: Chain, tensor: str, launch: int, whole: int) -> bool:
    """A temporary tensor that its last reader gets from L2 and that is dead afterwards is not written back."""
    later = [n for n in chain.users(tensor) if n > launch]
    if not later:
        return False
    between = _between_bytes(chain, tensor, later[0])
    return between is not None and between <= whole
