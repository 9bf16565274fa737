"""A prediction's answer in short sentences: what is read from HBM, against what, why, and how far to trust it.

The reason comes from numbers that a prediction has at hand: what each tensor reads against its size, what is spilled,
and what the L2 keeps. `iosim.studies.explain` gives the same reason, and adds to it from a traced replay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from iosim.base.records import dataclass
from iosim.base.units import bytes_text, digits_text, seconds_text, some
from iosim.base.words import CLOCKS, listed, sentences
from iosim.kernel.launch import SPILL, LaunchRole, Per, Role
from iosim.prediction.confidence import confidence, who
from iosim.prediction.result import Prediction
from iosim.prediction.reuse import Reuse, reuse
from iosim.readers.bounds import needed_bytes

ONCE = 1.05
"""HBM reads within this factor of the compulsory ones are said to be about those."""
SAME = 1.005
"""Bytes within this factor of each other are said to be the same."""
NAMED_SHARE = 0.1
"""A tensor is named beside the one that reads most above its own size where it reads this share of that."""
SPILL_SHARE = 0.1
"""Spilled bytes over the other bytes written into the L2 from which on spills are named."""
MOST_NAMED = 5
"""Predictions that a sentence names one by one beside the first; of more it names the least."""


def answer(predictions: Sequence[Prediction]) -> str:
    """Lines on predictions of one problem or of several lengths, of which they take the longest: what is read from HBM
    against what is compulsory, the time and what bounds it, the reason, and one word of confidence. Two kernels of one
    GPU are held against each other; of others each has a line."""
    # Of several lengths the longest alone is told of; the rest is in the table.
    longest = max(map(_lengths, predictions))
    taken = [p for p in predictions if _lengths(p) == longest]
    first = max(taken, key=excess)
    start = (
        f"At {some(first.problem.seq_q, 'token')} "
        if len(set(map(_lengths, predictions))) > 1
        else ""
    )
    cause = reason(first)
    if cause and len({p.kernel.name for p in taken}) > 1:
        cause = f"{first.kernel.name}: {cause}"
    end = (cause, confidence(taken))
    if len(taken) == 1:
        return sentences((f"{start}{moves(first)}", *end))
    rest = [p for p in taken if p is not first]
    # Two kernels on one GPU read best against each other; others have a line each, the worst first.
    if len(rest) == 1 and rest[0].profile.name == first.profile.name and _both_read(first, rest[0]):
        return sentences((f"{start}{_against_each_other(first, rest[0])}", *end))
    named = [*sorted(taken, key=excess)[:1], first] if len(taken) > MOST_NAMED else [first, *rest]
    lines = [f"{start}{of_several(p)}." for p in named]
    if len(named) < len(taken):
        lines[0] += f" It is the least of {len(taken)} above the compulsory bytes; the most:"
    return "\n".join([*lines, sentences(end)])


def moves(p: Prediction) -> str:
    """What a prediction reads from HBM, how long it takes and what bounds it."""
    return f"{reads(p)} in {timed(p)}, bound by {p.bound_by}"


def timed(p: Prediction) -> str:
    """The time with the clock that it stands for, as it would be measured: "25.3 ms (boost clock)"."""
    clock = f"{clock_text(p)} clock" if p.conditions.clocks in CLOCKS else clock_text(p)
    return f"{seconds_text(p.time_s)} ({clock})"


def clock_text(p: Prediction) -> str:
    """The clock that was asked for: boost, sustained, or in MHz."""
    clocks = p.conditions.clocks
    return clocks if isinstance(clocks, str) else f"{clocks / 1e6:,.0f} MHz"


def of_several(p: Prediction) -> str:
    return f"{who(p)}: {amount(p)} read from HBM, {timed(p)}, bound by {p.bound_by}"


def _both_read(larger: Prediction, smaller: Prediction) -> bool:
    told_apart = larger.kernel.name != smaller.kernel.name and larger.l2_start != "warm"
    return told_apart and larger.hbm_known and smaller.hbm_known and smaller.hbm.read > 0


def _against_each_other(larger: Prediction, smaller: Prediction) -> str:
    """Two kernels of one GPU: the one that reads least against the other."""
    times = larger.hbm.read / smaller.hbm.read
    took = (
        f"{seconds_text(smaller.time_s)} ({clock_text(smaller)}), not {seconds_text(larger.time_s)}"
    )
    # Within 5 %: "about as many bytes" is truer than a factor of 1.02.
    if times <= ONCE:
        about = "" if times <= SAME else "about "
        same = f"{bytes_text(smaller.hbm.read)}, {against(smaller.hbm_payload.read, smaller.hbm_bounds.compulsory_read)}"
        return f"{who(smaller)} reads {about}as many bytes from HBM as {larger.kernel.name} ({same}) in {took}"
    both = f"{bytes_text(smaller.hbm.read)} against {bytes_text(larger.hbm.read)}"
    return f"{who(smaller)} reads {times_text(times)}x fewer bytes from HBM than {larger.kernel.name} ({both}) in {took}"


def _lengths(p: Prediction) -> tuple[int, int]:
    return p.problem.seq_q, p.problem.seq_k


def excess(p: Prediction) -> float:
    """HBM reads over the compulsory ones; where only bounds are known, those with no L2."""
    read = p.hbm_payload.read if p.hbm_known else p.hbm_bounds.no_l2_read
    return read / max(1, p.hbm_bounds.compulsory_read)


def times_text(times: float) -> str:
    return digits_text(times)


def reads(p: Prediction) -> str:
    if not p.hbm_known:
        at_least, at_most = (
            bytes_text(p.hbm_bounds.compulsory_read),
            bytes_text(p.hbm_bounds.no_l2_read),
        )
        if p.l2_start == "warm":
            return f"{who(p)} reads at most {at_most} (with no L2) from HBM; with a cold L2 at least {at_least} (compulsory)"
        return f"{who(p)} reads between {at_least} (compulsory) and {at_most} (with no L2) from HBM"
    read, compulsory = p.hbm_payload.read, p.hbm_bounds.compulsory_read
    from_l2 = left_warm(p)
    warm = " even with a warm L2" if p.l2_start == "warm" and not from_l2 else ""
    comparison = f"{from_l2 or against(read, compulsory)}{warm}{checks_text(p)}"
    return f"{who(p)} reads {bytes_text(p.hbm.read) if read else 'nothing'} from HBM ({comparison})"


def checks_text(p: Prediction) -> str:
    """How many of the bytes that are read are check bits; empty where there are none."""
    return f"; {bytes_text(p.check_bits.read)} check bits" if p.check_bits.read else ""


def left_warm(p: Prediction) -> str:
    return left_in_l2(p.hbm_payload.read, p.hbm_bounds.compulsory_read, p.l2_start)


def left_in_l2(hbm_bytes: float, compulsory: float, l2_start: str) -> str:
    """That the call before left compulsory bytes in the L2; empty where it is cold, or left hardly any."""
    if l2_start != "warm" or hbm_bytes * ONCE >= compulsory:
        return ""
    if not hbm_bytes:
        return f"the compulsory {bytes_text(compulsory)} lie in the warm L2"
    return f"the rest of the compulsory {bytes_text(compulsory)} lies in the warm L2"


def against(hbm_bytes: float, compulsory: float, word: str = "the compulsory bytes") -> str:
    if hbm_bytes and not compulsory:
        return "where nothing is compulsory: no query sees a key"
    times = hbm_bytes / max(1, compulsory)
    if times > ONCE:
        return f"{times_text(times)}x {word}"
    if times <= SAME:
        return word
    return f"about {word}" if " " in word else f"near-{word}"


def amount(p: Prediction) -> str:
    if not p.hbm_known:
        return (
            f"{bytes_text(p.hbm_bounds.compulsory_read)} to {bytes_text(p.hbm_bounds.no_l2_read)}"
        )
    read, compulsory = p.hbm_payload.read, p.hbm_bounds.compulsory_read
    return f"{bytes_text(p.hbm.read)} ({left_warm(p) or against(read, compulsory, 'compulsory')})"


def why(p: Prediction) -> str:
    """The reason of its HBM reads, in sentences without the last full stop; empty where only bounds are known, or a
    warm L2 is the reason."""
    if not p.hbm_known or left_warm(p) or not p.hbm_bounds.compulsory_read:
        return ""
    return read_once(p) if excess(p) <= ONCE else f"{_excess_reason(p)}{spills_beside(p)}"


def read_once(p: Prediction) -> str:
    requested = p.total("l2", "read")
    if requested <= ONCE * p.hbm_bounds.compulsory_read:
        return "The SMs hardly read anything twice"
    serves = "the L2 serves" if len(p.profile.levels) == 1 else "the caches serve"
    return f"The SMs read {bytes_text(requested)}: {serves} the rest"


def reason(p: Prediction) -> str:
    """The reason of its HBM reads in a few words, of which `why` says more; empty where only bounds are known, or a
    warm L2 is the reason."""
    # No reason is given where nothing was found, or where there is nothing to explain.
    if not p.hbm_known or left_warm(p) or not p.hbm_bounds.compulsory_read:
        return ""
    if excess(p) <= ONCE:
        return read_once(p)
    above, names = _most_above(p)
    together = bytes_text(sum(above.read[name] for name in names))
    # The kind of tensor decides the reason: inputs are read again, temporaries pass between launches,
    # outputs are added up, spilled registers come back.
    if above.kind == Role.INPUT:
        return _short_rereads(p, names, above)
    if above.kind == Role.TEMP:
        sizes = [p.chain.tensors[name].bytes for name in names]
        last, apiece = p.profile.levels[-1], " each" if len(names) > 1 else ""
        do = "do" if len(names) > 1 else "does"
        if max(sizes) > last.bytes:
            capacity = f"{bytes_text(last.bytes)} {last.name}"
            return f"{listed(names)} ({bytes_text(max(sizes))}{apiece}) {do} not fit the {capacity}"
        return f"{listed(names)} {'live' if len(names) > 1 else 'lives'} between launches: {together} read back"
    if above.kind == Role.OUTPUT:
        return f"{listed(names)} {'are' if len(names) > 1 else 'is'} added up in memory"
    if above.kind == SPILL:
        return f"{together} of spilled registers are read back"
    return f"{together} are read beside the tensors"


def _short_rereads(p: Prediction, names: list[str], above: Above) -> str:
    again = read_again(p, above, names, "x")
    shared = _reuse_of(p, names)
    if shared is None or shared.regime not in reread_clauses(p, shared):
        return again
    if not shared.outgrows:
        return f"{again}: CTAs drift apart or other data displaces them"
    heads = 1 if shared.one_head_bytes > shared.capacity_bytes else shared.heads_at_once
    held = f"a head's {bytes_text(shared.one_head_bytes)}"
    if heads > 1:
        held = f"{heads:,} heads' {bytes_text(shared.in_progress_bytes)}"
    return f"{again}: {held} outgrow the {p.profile.levels[-1].name}"


def spills_beside(p: Prediction) -> str:
    spilled = int(p.traffic.total("l2", "write", tensor=SPILL))
    much = spilled > SPILL_SHARE * (p.total("l2", "write") - spilled)
    return f". {bytes_text(spilled)} of spilled registers take room in the L2" if much else ""


def _before_main(p: Prediction) -> str:
    """A sentence on the time of what makes the main launch's operands; empty where nothing does."""
    times = p.time.launches
    launch = p.chain.launch_of(LaunchRole.MAIN)
    main = 0 if launch is None else [t.name for t in times].index(launch.name)
    ahead = math.fsum(t.total_s for t in times[:main])
    taken = f"{seconds_text(ahead)} of {seconds_text(p.time.total_s)}"
    return f". The launches before the main one take {taken}" if main else ""


@dataclass(frozen=True)
class Above:
    """Bytes read from HBM and needed once, by tensor, and the kind of tensors that are read most above that."""

    kind: str
    read: dict[str, int]
    needed: dict[str, int]


def _most_above(p: Prediction) -> tuple[Above, list[str]]:
    """What is read most above what is needed, and the tensors of that kind that are."""
    read = {
        name: int(bytes_moved)
        for (name, way), bytes_moved in p.traffic.payload.tensors("hbm").items()
        if way == "read"
    }
    needed = {t.name: needed_bytes(p.problem, t) for t in p.chain.role(Role.INPUT)}
    above = {name: n - needed.get(name, 0) for name, n in read.items()}
    # Tensors by kind, those furthest above their size first; the kind with the largest sum is told of,
    # and in it those that have a tenth of its largest.
    kinds: dict[str, list[str]] = {}
    for name in sorted(above, key=lambda n: -above[n]):
        tensor = p.chain.tensors.get(name)
        kinds.setdefault(name if tensor is None else tensor.role, []).append(name)
    kind = max(kinds, key=lambda k: math.fsum(above[n] for n in kinds[k]))
    names = [n for n in kinds[kind] if above[n] >= NAMED_SHARE * above[kinds[kind][0]]]
    return Above(kind, read, needed), names


def _excess_reason(p: Prediction) -> str:
    above, names = _most_above(p)
    kind, read = above.kind, above.read
    together = sum(read[n] for n in names)
    if kind == Role.INPUT:
        return _rereads(p, above, names)
    if kind == Role.TEMP:
        sizes = [p.chain.tensors[n].bytes for n in names]
        many = len(names) > 1
        size = f"{'up to ' if len(set(sizes)) > 1 else ''}{bytes_text(max(sizes))}{' each' if many else ''}"
        last = p.profile.levels[-1]
        outgrown = f" exceed{'' if many else 's'} the {bytes_text(last.bytes)} {last.name}"
        beside = outgrown if max(sizes) > last.bytes else ""
        lives = f"live{'' if many else 's'} between launches{' and' if beside else ''}{beside}"
        return f"{listed(names)}, {size}, {lives}: {bytes_text(together)} are read back{_before_main(p)}"
    if kind == Role.OUTPUT:
        are = "are" if len(names) > 1 else "is"
        return f"{listed(names)} {are} added up in memory: {bytes_text(together)} are read back"
    if kind == SPILL:
        return f"{bytes_text(together)} of spilled registers are read back"
    return f"{bytes_text(together)} are read beside the tensors ({listed(names)})"


def read_again(p: Prediction, above: Above, names: list[str], times_word: str) -> str:
    """ "K and V are read 3 times over"; of what a mask leaves of them, where it leaves a part."""
    read, needed = (sum(of[name] for name in names) for of in (above.read, above.needed))
    said = f"{listed(names)} {'are' if len(names) > 1 else 'is'} read {times_text(read / max(1, needed))}"
    # Rows that no query needs are read as well: then nothing need be read twice.
    if needed * ONCE < sum(p.chain.tensors[name].bytes for name in names):
        return f"{said} times what is needed of {'them' if len(names) > 1 else 'it'}"
    return f"{said}{times_word}"


def _rereads(p: Prediction, above: Above, names: list[str]) -> str:
    again = read_again(p, above, names, " times over")
    shared = _reuse_of(p, names)
    if shared is None:
        users = sum(any(a.tensor == names[0] for a in n.accesses) for n in p.chain.launches)
        return f"{again}, by {users} launches" if users > 1 else again
    return again + reread_clauses(p, shared).get(shared.regime, "")


def _reuse_of(p: Prediction, names: list[str]) -> Reuse | None:
    """What the launch that reads most from HBM reads of tensors that its CTAs loop over; None where it does not loop
    over these."""
    # The launch that reads most: its regime is the call's.
    launch = max(p.chain.launches, key=lambda n: p.traffic.total("hbm", "read", launch=n.name))
    looped = {a.tensor for a in launch.accesses if a.per is Per.PAIR}
    return reuse(p, launch) if set(names) <= looped else None


def reread_clauses(p: Prediction, shared: Reuse) -> dict[str, str]:
    """What follows "K and V are read 3 times over" where tensors that CTAs share are read again, by the regime. Bytes
    in progress that fit in the L2 are no reason: then something else must have taken their place."""
    keeps = f"the {bytes_text(shared.capacity_bytes)} that {sharing_cache(p)} keeps"
    if not shared.outgrows:
        displaced = f"would fit in {keeps}, so CTAs drift apart or other data displaces them"
        return {
            "thrashing": f": most loads of {listed(shared.tensors)} miss. {_in_progress(shared)} {displaced}",
            "drift": f": {_in_progress(shared)} {displaced}",
        }
    exceed = f"{_in_progress(shared)} {'exceeds' if len(shared.tensors) == 1 else 'exceed'} {keeps}"
    step = ""
    if shared.in_step_bytes is not None:
        step = f" (kept in step, they read at most {bytes_text(shared.in_step_bytes)})"
    return {
        "thrashing": f": most loads of {listed(shared.tensors)} miss. {exceed}",
        "wave-bound": f": {exceed}, and waves of CTAs read them anew",
        "drift": f": {exceed}, and CTAs drift apart{step}",
    }


def sharing_cache(p: Prediction) -> str:
    """What keeps one copy of data that all SMs share: the last cache, or one of its partitions."""
    last = p.profile.levels[-1]
    return f"one partition of the {last.name}" if last.copies > 1 else f"the {last.name}"


def _in_progress(shared: Reuse) -> str:
    names = listed(shared.tensors)
    if shared.one_head_bytes > shared.capacity_bytes or shared.heads_at_once == 1:
        return f"{names} of a head, {bytes_text(shared.one_head_bytes)},"
    return f"{names} of {some(shared.heads_at_once, 'head')} in progress, {bytes_text(shared.in_progress_bytes)},"
