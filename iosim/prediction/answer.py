"""A prediction's answer in short sentences: what is read from HBM, against what, why, and how far to trust it.

The reason comes from numbers that a prediction has at hand: what each tensor reads against its size, what is spilled,
and what the L2 keeps. `iosim.studies.explain` gives the same reason, and adds to it from a traced replay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from iosim.base.units import bytes_text, seconds_text, some, times_of
from iosim.base.words import listed, sentences
from iosim.catalog.libraries.default import told
from iosim.catalog.libraries.loader import counted_on
from iosim.hardware.profile import list_profiles
from iosim.kernel.launch import SPILL, LaunchRole, Per, Role
from iosim.prediction.result import Prediction
from iosim.prediction.reuse import Reuse, reuse
from iosim.readers.bounds import needed_bytes

ONCE = 1.05
"""HBM reads within this factor of the compulsory ones are said to be those."""
NAMED_SHARE = 0.1
"""A tensor is named beside the one that reads most above its own size where it reads this share of that."""
SPILL_SHARE = 0.1
"""Spilled bytes over the other bytes written into the L2 from which on spills are named."""
MOST_NAMED = 5
"""Predictions that a sentence names one by one beside the first; of more it names the least."""


def answer(predictions: Sequence[Prediction]) -> str:
    """Sentences on predictions of one problem or of several lengths, of which they take the longest. The prediction
    furthest above its compulsory bytes comes first, then the others by GPU; its reason; the caveats."""
    longest = max(map(_lengths, predictions))
    taken = [p for p in predictions if _lengths(p) == longest]
    first = max(taken, key=excess)
    start = f"At {some(first.problem.seq_q, 'token')} " if len(set(map(_lengths, predictions))) > 1 else ""
    parts = [f"{start}{reads(first)}"]
    others = [p for p in taken if p is not first]
    if len(others) > MOST_NAMED:
        least = min(others, key=excess)
        parts.append(f"the least of {len(taken)}, {who(least)}, {amount(least)}")
    else:
        gpus = dict.fromkeys((first.profile.name, *(p.profile.name for p in others)))
        for gpu in gpus:
            named = ", ".join(f"{p.kernel.name} {amount(p)}" for p in others if p.profile.name == gpu)
            parts += [named if gpu == first.profile.name else f"on {gpu} {named}"] if named else []
    return sentences(("; ".join(parts), why(first), trust(taken)))


def _lengths(p: Prediction) -> tuple[int, int]:
    return p.problem.seq_q, p.problem.seq_k


def excess(p: Prediction) -> float:
    """HBM reads over the compulsory ones; where only bounds are known, those with no L2."""
    read = p.hbm_payload.read if p.hbm_known else p.hbm_bounds.no_l2_read
    return read / max(1, p.hbm_bounds.compulsory_read)


def times_text(times: float) -> str:
    return f"{times:,.0f}" if times >= 1000 else f"{times:.3g}"


def who(p: Prediction) -> str:
    return f"{p.kernel.name} on {p.profile.name}"


def reads(p: Prediction) -> str:
    if not p.hbm_known:
        least, upper = bytes_text(p.hbm_bounds.compulsory_read), bytes_text(p.hbm_bounds.no_l2_read)
        if p.l2_start == "warm":
            return f"{who(p)} reads at most {upper} (with no L2) from HBM; with a cold L2 at least {least} (compulsory)"
        return f"{who(p)} reads between {least} (compulsory) and {upper} (with no L2) from HBM"
    read, compulsory = p.hbm_payload.read, p.hbm_bounds.compulsory_read
    warm_bytes = left_warm(p)
    start = f"{who(p)} reads {bytes_text(p.hbm.read) if read else 'nothing'} from HBM{checks_text(p)}"
    if warm_bytes:
        return f"{start}: {warm_bytes}, which serves the {bytes_text(p.total('l2', 'read'))} that the SMs read"
    return f"{start}, {against(read, compulsory)}{' even with a warm L2' if p.l2_start == 'warm' else ''}"


def checks_text(p: Prediction) -> str:
    """Of bytes that are read: how many are check bits; empty where there are none."""
    return f", {bytes_text(p.check_bits.read)} of it check bits" if p.check_bits.read else ""


def left_warm(p: Prediction) -> str:
    return left_in_l2(p.hbm_payload.read, p.hbm_bounds.compulsory_read, p.l2_start)


def left_in_l2(read_bytes: float, compulsory: float, l2_start: str) -> str:
    """That the call before left compulsory bytes in the L2; empty where it is cold, or left hardly any."""
    if l2_start != "warm" or read_bytes * ONCE >= compulsory:
        return ""
    if not read_bytes:
        return f"the compulsory {bytes_text(compulsory)} lie in the warm L2"
    return f"the rest of the compulsory {bytes_text(compulsory)} lies in the warm L2"


def against(read_bytes: float, compulsory: float, word: str = "the compulsory bytes") -> str:
    if read_bytes and not compulsory:
        return "where nothing is compulsory: no query sees a key"
    times = read_bytes / max(1, compulsory)
    return word if times <= ONCE else times_of(times_text(times), word)


def amount(p: Prediction) -> str:
    if not p.hbm_known:
        return f"{bytes_text(p.hbm_bounds.compulsory_read)} to {bytes_text(p.hbm_bounds.no_l2_read)}"
    read, compulsory = p.hbm_payload.read, p.hbm_bounds.compulsory_read
    times = left_warm(p) or against(read, compulsory, "compulsory")
    return f"{bytes_text(p.hbm.read)} ({times.replace(' times compulsory', ' times')})"


def why(p: Prediction) -> str:
    """The reason of its HBM reads, in sentences without the last full stop; empty where only bounds are known, or a
    warm L2 is the reason."""
    if not p.hbm_known or left_warm(p) or not p.hbm_bounds.compulsory_read:
        return ""
    return read_once(p) if excess(p) <= ONCE else f"{_excess_reason(p)}{spills_beside(p)}"


def read_once(p: Prediction) -> str:
    l2_bytes = p.total("l2", "read")
    if l2_bytes <= ONCE * p.hbm_bounds.compulsory_read:
        return "The SMs hardly read anything twice"
    serves = "the L2 serves" if len(p.profile.levels) == 1 else "the caches serve"
    return f"The SMs read {bytes_text(l2_bytes)}: {serves} the rest"


def spills_beside(p: Prediction) -> str:
    spilled = int(p.traffic.total("l2", "write", tensor=SPILL))
    much = spilled > SPILL_SHARE * (p.total("l2", "write") - spilled)
    return f". {bytes_text(spilled)} of spilled registers take room in the L2" if much else ""


def trust(predictions: Iterable[Prediction]) -> str:
    """Kernels that nobody asked for, how HBM bytes were found and what that rests on, GPUs of one kind together, and
    kernels where those of a GPU differ; and kernels of which spills are left out. Sentences without the last full
    stop."""
    several = list(predictions)
    by_basis: dict[tuple[str, str], list[Prediction]] = {}
    for p in several:
        by_basis.setdefault(_basis(p), []).append(p)
    gpus = {basis: dict.fromkeys(p.profile.name for p in those) for basis, those in by_basis.items()}
    differ = sum(map(len, gpus.values())) > len({name for members in gpus.values() for name in members})
    bases = []
    for (how, numbers), those in by_basis.items():
        where = f" on {listed(list(gpus[how, numbers]))}" if len(by_basis) > 1 else ""
        kernels = listed(list(dict.fromkeys(p.kernel.name for p in those)))
        bases.append(f"HBM bytes{f' of {kernels}' if differ else ''}{where} {how}")
        rests_on = f"The L2 model's numbers{where}: {numbers}"
        bases += [rests_on] if numbers and rests_on not in bases else []
    by_default = told((p.kernel, p.profile) for p in several)
    return ". ".join(part for part in (by_default, backing(several), *bases, left_out_spills(several)) if part)


def backing(predictions: Iterable[Prediction]) -> str:
    """What predictions for these GPUs were held against, in a word for each."""
    words = {p.profile.name: p.profile.backed_by for p in predictions}
    if len(set(words.values())) == 1:
        return f"Backed by {next(iter(words.values()))}"
    return f"Backed by {', '.join(f'{word} on {gpu}' for gpu, word in words.items())}"


def left_out_spills(predictions: Iterable[Prediction]) -> str:
    spilling = list(dict.fromkeys(p.kernel.name for p in predictions if p.call.spilling))
    return f"{listed(spilling)} would spill registers, at a cost that is in no number here" if spilling else ""


def _basis(p: Prediction) -> tuple[str, str]:
    if p.method == "bounds":
        return "bounded, not predicted", ""
    if p.method == "capacity":
        return "by the capacity rule, an estimate", ""
    l2, hbm = (next(b for b in p.evidence.bases if b.model == name) for name in ("l2", "hbm"))
    how = "by replay" if p.method == "replay" else "by replay in part"
    return f"{how}, {_checks(p, bool(hbm.validated_by))}", l2.summary


def _checks(p: Prediction, validated: bool) -> str:
    """Which counters there are to compare a prediction with. `validated`: the GPU's profile says that predictions for
    it were checked."""
    passes = {"fwd": (False,), "bwd": (True,), "fwd+bwd": (False, True)}[p.problem.passes]
    each = [counted_on(p.kernel.name, backward) for backward in passes]
    if not all(each):
        return "with no counters of this kernel to compare with"
    here = all(p.profile.name in gpus for gpus in each) or p.profile.name not in list_profiles()
    if validated and here:
        return "checked against that GPU's counters"
    return "not checked against that GPU's counters"


def _before_main(p: Prediction) -> str:
    """A sentence on the time of what makes the main launch's operands; empty where nothing does."""
    times = p.time.launches
    launch = p.chain.launch_of(LaunchRole.MAIN)
    main = 0 if launch is None else [t.name for t in times].index(launch.name)
    ahead = math.fsum(t.total_s for t in times[:main])
    taken = f"{seconds_text(ahead)} of {seconds_text(p.time.total_s)}"
    return f". The launches before the main one take {taken}" if main else ""


def _excess_reason(p: Prediction) -> str:
    read = {name: int(count) for (name, way), count in p.traffic.payload.tensors("hbm").items() if way == "read"}
    counted = {t.name: needed_bytes(p.problem, t) for t in p.chain.role(Role.INPUT)}
    above = {name: n - counted.get(name, 0) for name, n in read.items()}
    kinds: dict[str, list[str]] = {}
    for name in sorted(above, key=lambda n: -above[n]):
        tensor = p.chain.tensors.get(name)
        kinds.setdefault(name if tensor is None else tensor.role, []).append(name)
    kind = max(kinds, key=lambda k: math.fsum(above[n] for n in kinds[k]))
    names = [n for n in kinds[kind] if above[n] >= NAMED_SHARE * above[kinds[kind][0]]]
    together = sum(read[n] for n in names)
    if kind == Role.INPUT:
        return _rereads(p, names, together / max(1, sum(counted[n] for n in names)))
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


def _rereads(p: Prediction, names: list[str], times: float) -> str:
    again = f"{listed(names)} {'are' if len(names) > 1 else 'is'} read {times_text(times)} times over"
    launch = max(p.chain.launches, key=lambda n: p.traffic.total("hbm", "read", launch=n.name))
    looped = {a.tensor for a in launch.accesses if a.per is Per.PAIR}
    if not set(names) <= looped:
        users = sum(any(a.tensor == names[0] for a in n.accesses) for n in p.chain.launches)
        return f"{again}, by {users} launches" if users > 1 else again
    reused = reuse(p, launch)
    return again + reread_clauses(p, reused).get(reused.regime, "")


def reread_clauses(p: Prediction, reused: Reuse) -> dict[str, str]:
    """What follows "K and V are read 3 times over" where tensors that CTAs share are read again, by the regime. Bytes
    in progress that fit in the L2 are no reason: then something else must have taken their place."""
    keeps = f"the {bytes_text(reused.capacity_bytes)} that {sharing_cache(p)} keeps"
    if not reused.outgrows:
        displaced = f"would fit in {keeps}, so CTAs drift apart or other data displaces them"
        return {
            "thrashing": f": most loads of {listed(reused.tensors)} miss. {_in_progress(reused)} {displaced}",
            "drift": f": {_in_progress(reused)} {displaced}",
        }
    exceed = f"{_in_progress(reused)} {'exceeds' if len(reused.tensors) == 1 else 'exceed'} {keeps}"
    step = ""
    if reused.in_step_bytes is not None:
        step = f" (kept in step, they read at most {bytes_text(reused.in_step_bytes)})"
    return {
        "thrashing": f": most loads of {listed(reused.tensors)} miss. {exceed}",
        "wave-bound": f": {exceed}, and waves of CTAs read them anew",
        "drift": f": {exceed}, and CTAs drift apart{step}",
    }


def sharing_cache(p: Prediction) -> str:
    """What keeps one copy of data that all SMs share: the last cache, or one of its partitions."""
    last = p.profile.levels[-1]
    return f"one partition of the {last.name}" if last.copies > 1 else f"the {last.name}"


def _in_progress(reused: Reuse) -> str:
    names = listed(reused.tensors)
    if reused.one_head_bytes > reused.capacity_bytes or reused.heads_at_once == 1:
        return f"{names} of a head, {bytes_text(reused.one_head_bytes)},"
    return f"{names} of {some(reused.heads_at_once, 'head')} in progress, {bytes_text(reused.in_progress_bytes)},"
