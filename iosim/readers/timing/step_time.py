"""Time of one step of a kernel's key loop on one SM: which of its terms overlap.

`step_terms` has what each unit needs and what a CTA waits for; here `step_cycles` combines them for the CTAs that share
the SM. It knows nothing of grids, waves or HBM (`iosim.readers.timing.makespan`, `launch_time`).
"""

from __future__ import annotations

from iosim.base.records import dataclass
from iosim.kernel.unit import WARPS_PER_GROUP, Overlap, UnitModel
from iosim.readers.timing import step_terms as terms
from iosim.readers.timing.overlap import products_beside_softmax, step_beside_l2
from iosim.readers.timing.step_terms import Step

DEEP_STAGES = 3
"""Buffers of keys from which a loop requests a step's keys so long before that what the L2 is late holds nobody up
(seen on tiles of experiments/measurements/triton_tiles_d64_time.csv and of iosim's own kernel)."""

HIDDEN_SHARE = 0.5
"""Of what a CTA's products last longer than all else that it does, the part that hides another CTA's softmax and
waits: CTAs that met in step would hide nothing of it, CTAs in strict turns all, and at any phase half in the mean.
Fitted, as the better of a half and all on calls of an RTX A6000 and of an RTX 4090. A softmax that begins among the
products before it is taken to be hidden as far."""


@dataclass(frozen=True)
class StepCost:
    """SM cycles that one CTA's step takes of each unit, and how they overlap. A unit whose rate is unknown costs 0."""

    tensor: float
    """Cycles of the products."""
    softmax: float
    """Cycles of exponentials and fp32 work."""
    smem: float
    """Cycles at shared memory."""
    l2: float
    """Cycles of the bytes at the L2."""
    exposed: float
    """Cycles in which the CTA waits."""
    streams: float
    """Warpgroups' worth of computing warps in the CTA."""
    overlap: Overlap
    """What runs beside what."""
    warps_meet: bool = False
    """True where all warps are at the products, and then all at the softmax."""
    fragments: float = 0.0
    """Cycles of `smem` that warps fetch for products of their own."""
    fetches_own: bool = False
    """True where warps fetch fragments of their own, also where the term of shared memory is left out."""
    shown_fragments: float = 0.0
    """Cycles of `fragments` that a stream's own products do not hide."""
    meeting: float = 0.0
    """Cycles of products and fragments that warps which meet do not hide."""
    specialised: bool = False
    """True where warpgroups overlap products and softmax inside a CTA by their norm."""
    hides_l2: bool = False
    """True where what the L2 moves is hidden wholly, as far as it takes less than the rest."""
    twice_fetched: float = 0.0
    """Cycles of sectors that copies fetch once more, on top of all else."""
    queued: float = 0.0
    """Cycles of accesses to frames that L1 does not hold, which all CTAs of an SM make one behind the other."""
    further: float = 0.0
    """Cycles of `softmax` that each CTA beyond the second adds: with so many warps an SM's units work side by side."""
    among_products: float = 0.0
    """Cycles of `softmax` that run beside the products before it, among which it begins."""
    chain: float = 0.0
    """Cycles from the scores to P, one operation behind the other; `softmax` is less where its units work side by
    side."""

    @property
    def busiest(self) -> float:
        """Cycles of the unit that needs the most."""
        return max(self.tensor, self.softmax, self.smem)

    def least(self, ctas: int) -> float:
        """Cycles of the busiest unit for a step of each of `ctas` CTAs."""
        return min(ctas, 2) * self.busiest + max(0, ctas - 2) * max(
            self.tensor, self.further, self.smem
        )


def step_cost(step: Step) -> StepCost:
    """What a step of an attention loop costs."""
    launch, unit, work = step.launch, step.unit, step.launch.work
    exps = terms.exponential_cycles(step)
    others = (
        terms.softmax_cycles(step)
        + terms.score_function_cycles(step)
        + terms.mask_cycles(step)
        + terms.widening_cycles(step)
        + terms.narrow_copy_cycles(step)
        + terms.operand_cycles(step)
    )
    exposed = (
        terms.exposed_load_cycles(step)
        + terms.pipeline_cycles(step)
        + terms.barrier_cycles(step)
        + terms.single_buffer_cycles(step)
        + terms.list_cycles(step)
        + terms.add_cycles(step)
        + terms.spill_cycles(step)
    )
    softmax = max(exps, others) if unit.softmax_side_by_side else exps + others
    smem = terms.shared_cycles(step)
    waits_together = step.waited_loads > 0 or work.loop.copy_waits > 1
    meets_at_copies = work.loop.copy_waits > 0 and (unit.warps_may_meet or waits_together)
    return StepCost(
        tensor=terms.product_cycles(step),
        softmax=softmax,
        smem=smem,
        l2=terms.l2_cycles(step),
        exposed=exposed,
        streams=computing_groups(step.warps, unit, work.loop.producer_warps),
        overlap=unit.overlap,
        warps_meet=step.warps_meet or meets_at_copies,
        fragments=smem if unit.issued_by_warps else 0.0,
        fetches_own=unit.issued_by_warps and step.shared_bytes > 0,
        shown_fragments=terms.shown_fragment_cycles(step),
        meeting=terms.meeting_cycles(step),
        specialised=not launch.is_backward,
        hides_l2=unit.hides_l2 or work.stages >= DEEP_STAGES,
        twice_fetched=terms.twice_fetched_cycles(step),
        queued=terms.queued_spill_cycles(step),
        further=softmax if unit.issued_by_warps else max(exps, others),
        among_products=HIDDEN_SHARE * softmax if work.loop.interleaves else 0.0,
        chain=exps + others,
    )


def computing_groups(warps: int, unit: UnitModel, producers: int | None = None) -> float:
    """Warpgroups' worth of warps that compute: all but `producers`, warps that load, or as many as kernels of the unit
    have besides where no number is stated."""
    groups = warps / WARPS_PER_GROUP
    helpers = unit.helper_groups if producers is None else producers / WARPS_PER_GROUP
    return max(min(1.0, groups), groups - helpers)


def step_cycles(cost: StepCost, ctas: int) -> float:
    """SM cycles in which each of `ctas` CTAs on one SM does one step.

    Warp-specialised kernels overlap products and softmax in part. In all others every stream of warps goes from product
    to softmax to product. The streams of an SM then share its units as jobs share the stations of a closed
    queueing network: the first pays its whole path and the waiting, each further one the busiest unit's part, past two
    CTAs of wgmma the longer of exponentials and fp32 work. Of n ping-pong warpgroups the step so takes the longer of
    tensor and softmax work and 1/n of the shorter. Products of mma.sync that last longer than all else hide a part of
    that (`_hidden`). With tcgen05 the n tiles of a CTA run in a fixed turn, so that one
    takes its products and its softmax in the time of a step. With mma.sync the fragments' shared memory is such a unit.
    Streams whose warps meet in every step take no turns: all are at the products, where one's fragments are fetched
    during another's, and then all at the softmax. Throughput of each unit is a floor. What the L2 moves meanwhile
    overlaps in part, unless the unit hides it.
    """
    if cost.warps_meet and cost.streams > 1:
        products = max(cost.tensor, cost.smem) + cost.meeting
        path = products + cost.softmax - cost.among_products + (ctas - 1) * cost.busiest
    else:
        path = _PATHS[cost.overlap](cost, ctas)
        path -= _hidden(cost, ctas)
    units = max(cost.exposed + path, cost.least(ctas)) + ctas * cost.queued
    l2 = ctas * cost.l2
    together = max(units, l2) if cost.hides_l2 else step_beside_l2(units, l2)
    return together + ctas * cost.twice_fetched


def _hidden(cost: StepCost, ctas: int) -> float:
    """Cycles of a CTA's softmax and waits that the products of the SM's other CTAs hide, where these last longer. With
    mma.sync alone; on an A100 and a Hopper products hardly ever last longer."""
    # CTAs of one warp or two, together no more than four, leave none for another to wait behind.
    if ctas < 2 or min(ctas, 2) * cost.streams <= 1:
        return 0.0
    if not cost.fragments and not cost.fetches_own:
        return 0.0
    rest = (cost.softmax + cost.shown_fragments) / cost.streams + cost.exposed
    return min(rest, HIDDEN_SHARE * max(0.0, cost.tensor - rest))


def _queue(cost: StepCost, ctas: int) -> float:
    alone = cost.tensor + cost.softmax + cost.shown_fragments
    others = max(0.0, min(ctas, 2) * cost.streams - 1) * max(
        cost.tensor, cost.softmax, cost.fragments
    )
    return (alone + others) / cost.streams + max(0, ctas - 2) * max(
        cost.tensor, cost.further, cost.fragments
    )


def _inside(cost: StepCost, ctas: int) -> float:
    if cost.specialised:
        return ctas * products_beside_softmax(cost.tensor, cost.softmax)
    return ctas * (cost.tensor + cost.softmax)


def _fixed_turn(cost: StepCost, ctas: int) -> float:
    return ctas * (cost.tensor + cost.chain) / cost.streams


_PATHS = {Overlap.QUEUE: _queue, Overlap.INSIDE: _inside, Overlap.FIXED_TURN: _fixed_turn}
