"""How far predictions can be trusted: in one word beside an answer, and in sentences under it."""

from __future__ import annotations

from collections.abc import Iterable

from iosim.base.errors import InputError
from iosim.base.words import listed
from iosim.catalog.libraries.default import told
from iosim.catalog.libraries.loader import counted_on
from iosim.catalog.libraries.resolver import resolve
from iosim.hardware.profile import HardwareProfile, list_profiles
from iosim.prediction.ranges import has_outgrown
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem


def who(p: Prediction) -> str:
    """The kernel, the GPU and the type of the inputs."""
    return f"{p.kernel.name} on {p.profile.name}{in_dtype(p.problem, p.profile)}"


def in_dtype(problem: AttentionProblem, profile: HardwareProfile | None = None) -> str:
    """The type of the inputs, which every answer names: " in bf16". With a `profile`, also that its tensor cores do not
    take that type, as bf16 on a T4."""
    slow = profile is not None and profile.computes_in_fp32(problem.dtype)
    return f" in {problem.dtype}{' on fp32 units' if slow else ''}"


def confidence(predictions: Iterable[Prediction]) -> str:
    """One word on how HBM bytes were found, and whether counters of that kernel on that GPU were compared with such
    predictions. `basis` has the rest."""
    several = list(predictions)
    words = {
        "bounds": "Bounded",
        "capacity": "Estimated",
        "sampled": "Simulated in part",
        "replay": "Simulated",
    }
    methods = list(dict.fromkeys(words[p.method] for p in several))
    start = f"{methods[0]}{', in part ' if len(methods) > 1 else ''}{' and '.join(method.lower() for method in methods[1:])}"
    played = [p for p in several if p.method not in ("bounds", "capacity")]
    if not played:
        return f"{start}, not simulated"
    # One word for all where they agree; else the weakest that is true of all, and who was checked.
    checked = [(p, _checks(p)) for p in played]
    verdicts = list(dict.fromkeys(how for _, how in checked))
    if verdicts == [CHECKED]:
        return f"{start}; checked against counters"
    if verdicts == [NOT_COUNTED]:
        return f"{start}; no counters of {'this kernel' if len(played) == 1 else 'these kernels'} to compare with"
    if TOO_LONG in verdicts:
        return f"{start}; beyond 131,072 keys reads were counted 1.0 to 1.4 times"
    if CHECKED not in verdicts:
        if MEASURED in (p.profile.backed_by for p in played):
            place = "there" if len({p.profile.name for p in played}) == 1 else "on these GPUs"
            return f"{start}; not checked {place}"
        return f"{start}. {backing(played)}"
    counted = listed(
        list(
            dict.fromkeys(
                f"{p.kernel.name} on {p.profile.name}" for p, how in checked if how == CHECKED
            )
        )
    )
    return f"{start}; checked for {counted} alone"


def basis(predictions: Iterable[Prediction]) -> tuple[str, ...]:
    """Kernels that nobody asked for, how HBM bytes were found and what that rests on, GPUs of one kind together, and
    kernels where those of a GPU differ; and kernels of which spills are left out: a sentence each, without its full
    stop."""
    several = list(predictions)
    by_basis: dict[tuple[str, str], list[Prediction]] = {}
    for p in several:
        by_basis.setdefault(_basis(p), []).append(p)
    gpus = {
        how_and_numbers: dict.fromkeys(p.profile.name for p in those)
        for how_and_numbers, those in by_basis.items()
    }
    # A GPU that stands under two bases has kernels that differ: then these are named, too.
    differ = sum(map(len, gpus.values())) > len({name for names in gpus.values() for name in names})
    bases = []
    for (how, numbers), those in by_basis.items():
        where = f" on {listed(list(gpus[how, numbers]))}" if len(by_basis) > 1 else ""
        kernels = listed(list(dict.fromkeys(p.kernel.name for p in those)))
        bases.append(f"HBM bytes{f' of {kernels}' if differ else ''}{where} {how}")
        rests_on = f"The L2 model's numbers{where}: {numbers}"
        bases += [rests_on] if numbers and rests_on not in bases else []
    by_default = told((p.kernel, p.profile) for p in several)
    return tuple(
        part for part in (by_default, backing(several), *bases, left_out_spills(several)) if part
    )


def backing(predictions: Iterable[Prediction]) -> str:
    """What predictions for these GPUs were held against, in a word for each; of kernels without counters, that those
    of the GPU are of others."""
    several = list(predictions)
    words = {p.profile.name: p.profile.backed_by for p in several}
    for gpu, word in words.items():
        if all(_is_uncounted(p) for p in several if p.profile.name == gpu):
            words[gpu] = OF_OTHERS.get(word, word)
    if len(set(words.values())) == 1:
        return f"Backed by {next(iter(words.values()))}"
    return f"Backed by {', '.join(f'{word} on {gpu}' for gpu, word in words.items())}"


def basis_text(predictions: Iterable[Prediction]) -> str:
    """`basis` as lines under a table."""
    return "".join(f"basis: {sentence}\n" for sentence in basis(predictions))


def left_out_spills(predictions: Iterable[Prediction]) -> str:
    spilling = list(dict.fromkeys(p.kernel.name for p in predictions if p.call.spilling))
    return (
        f"{listed(spilling)} would spill registers, at a cost that is in no number here"
        if spilling
        else ""
    )


MEASURED = "measured"
"""What a GPU is backed by on which this project counted and timed."""
CHECKED = "checked against that GPU's counters"
UNCHECKED = "not checked against that GPU's counters"
NOT_COUNTED = "with no counters of this kernel to compare with"
OF_OTHERS = {
    "measured": "measurements of other kernels",
    "public counters": "public counters of other kernels",
}
"""What a GPU is backed by -> the same, beside a kernel that nobody counted."""
TOO_LONG = (
    "which beyond 131,072 keys was counted to be off: reads of 1.0 to 1.4 times the predicted ones"
)


def _basis(p: Prediction) -> tuple[str, str]:
    if p.method == "bounds":
        return "bounded, not predicted", ""
    if p.method == "capacity":
        return "by the capacity rule, an estimate", ""
    l2 = next(model_basis for model_basis in p.evidence.bases if model_basis.model == "l2")
    how = "by replay" if p.method == "replay" else "by replay in part"
    return f"{how}, {_checks(p)}", l2.summary


def _is_uncounted(p: Prediction) -> bool:
    """True where bytes are simulated of a kernel that no counters were read of."""
    return p.method not in ("bounds", "capacity") and _checks(p) == NOT_COUNTED


def _checks(p: Prediction) -> str:
    """Which counters there are to compare a prediction with: of its kernel and passes, and on its GPU."""
    # Both passes need counters of both: a kernel is as well checked as its less checked half.
    passes = {"fwd": (False,), "bwd": (True,), "fwd+bwd": (False, True)}[p.problem.passes]
    counted_gpus = [counted_on(p.kernel.name, backward) for backward in passes]
    if not all(counted_gpus) or not _has_its_tiles(p):
        return NOT_COUNTED
    if p.hbm_known and has_outgrown(p.call, int(p.hbm_payload.read)):
        return TOO_LONG
    hbm = next(model_basis for model_basis in p.evidence.bases if model_basis.model == "hbm")
    here = (
        all(p.profile.name in gpus for gpus in counted_gpus)
        or p.profile.name not in list_profiles()
    )
    return CHECKED if hbm.validated_by and here else UNCHECKED


def _has_its_tiles(p: Prediction) -> bool:
    """False where a tile was given by hand: counters were read of the kernel with those that it takes by itself."""
    kernel = p.kernel
    try:
        alone = resolve(kernel.name, p.problem, p.profile)
    except InputError:  # it runs by hand alone
        return False
    passes = [(p.problem.forward, kernel.tile, alone.tile)]
    passes += [(p.problem.backward, kernel.tile_backward, alone.tile_backward)]
    return all(with_it == by_itself for runs, with_it, by_itself in passes if runs)
