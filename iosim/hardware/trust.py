"""How far predictions for a GPU can be trusted: on what the models of its L2, its HBM and its times rest.

Each model reads some quantities of the profile. Where they were measured on the GPU itself, so is the model; where one
is taken from another GPU, or assumed, the model says so. Which predictions were checked against measurements on the GPU
stands in the profile's `validation`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from iosim.base.records import dataclass
from iosim.base.units import bytes_text
from iosim.base.words import listed
from iosim.hardware.profile import HardwareProfile
from iosim.hardware.quantities import QUANTITIES, READ_BY

GROUPS: Mapping[str, tuple[str, ...]] = {
    group: tuple(name for name, quantity in QUANTITIES.items() if quantity.group == group)
    for groups in READ_BY.values()
    for group in groups
}
"""The quantities that models read, by what they tell of."""
MODELS: Mapping[str, tuple[str, ...]] = {
    model: tuple(name for group in groups for name in GROUPS[group])
    for model, groups in READ_BY.items()
}
"""The quantities of a profile that each model reads: every one that enters the time of a launch or the replay of an L2
(tests/hardware/test_trust.py watches both as they read), but for what decides how many CTAs an SM holds."""
L2_KNOWN: Mapping[str, tuple[float, float]] = {
    "l2_partitions": (1, 2),
    "l2_ways": (8, 16),
    "l2_effective_capacity_fraction": (0.94, 1.0),
    "l2_dirty_fraction": (0.49, 0.75),
}
"""Least and most of what the shipped profiles know of their own GPU, of what decides how much an L2 keeps."""
BORROWED = ("taken", "estimate")
RATES_KNOWN: Mapping[str, tuple[float, float]] = {
    "dram_read_bandwidth_bytes_per_s": (0.85, 1.05),
    "achieved_dram_fraction": (0.85, 1.05),
    "l2_read_bandwidth_measured_bytes_per_s": (0.8, 1.2),
    "l2_write_fraction": (0.7, 1.4),
    "l2_over_dram_bandwidth": (0.5, 1.5),
    "tensor_flops_achieved_per_s": (0.8, 1.1),
    "energy_factor": (1.25, 0.75),
    "tile_cycles": (1.3, 0.7),
    "step_sync_cycles": (1.3, 0.7),
    "step_load_cycles": (1.3, 0.7),
    "product_step_cycles": (1.3, 0.7),
    "spill_access_cycles": (1.3, 0.7),
    "launch_latency_s": (1.2, 0.7),
}
"""Of rates that were not measured on a GPU, by which factors they may be slower and faster than what the profile has:
how far known GPUs lie apart (shares of the specified memory bandwidth 0.80 to 0.98, of the tensor rate 0.45 to 1.0, L2
over memory bandwidth 2.1 to 6.2; waits in cycles go with L2 latencies of 177 to 310; launches 1.4 to 2.3 us), inferred
ones half as far."""
REPLACED: Mapping[str, tuple[str, ...]] = {
    "achieved_dram_fraction": (
        "dram_read_bandwidth_bytes_per_s",
        "dram_bandwidth_measured_bytes_per_s",
    ),
    "dram_bandwidth_bytes_per_s": (
        "dram_read_bandwidth_bytes_per_s",
        "dram_bandwidth_measured_bytes_per_s",
    ),
    "dram_bandwidth_measured_bytes_per_s": ("dram_read_bandwidth_bytes_per_s",),
    "l2_read_bandwidth_bytes_per_s": ("l2_read_bandwidth_measured_bytes_per_s",),
    "l2_over_dram_bandwidth": (
        "l2_read_bandwidth_measured_bytes_per_s",
        "l2_read_bandwidth_bytes_per_s",
    ),
    "tensor_flops_achieved_per_s": ("tensor_pj_per_flop",),
    "energy_factor": ("tensor_pj_per_flop",),
    "on_chip_energy_share": ("tensor_pj_per_flop",),
}
"""Quantities that are not read where the profile has one of these."""
PROBLEM_DTYPES = ("fp16", "bf16", "fp8")
"""Those of a problem, of all for which a profile may have rates of tensor cores."""
PINGPONG_CC = range(90, 120)
"""Compute capabilities with kernels whose warpgroups take turns at the tensor cores."""
TITLES = {"l2": "L2", "hbm": "HBM", "time": "time"}
WORDS = {
    "measured": "measured",
    "fitted": "fitted",
    "specification": "published",
    "inferred": "inferred",
    "estimate": "assumed",
    "taken": "taken",
}
OWN = ("measured", "fitted", "specification")


@dataclass(frozen=True)
class Basis:
    """What one model rests on. `rests_on`: the quantities that it reads, by how they are known: "measured" on this GPU,
    "fitted" to measurements of it, "published" for it, "inferred", "assumed", or "taken". `taken_from`: of how many
    numbers which GPUs are the source, the one with most first. `validated_by`: the measurements on this GPU that
    predictions were checked with; None where there are none."""

    model: str
    rests_on: Mapping[str, tuple[str, ...]]
    taken_from: Mapping[str, int]
    validated_by: str | None

    @property
    def summary(self) -> str:
        known = {how: len(self.rests_on[how]) for how in WORDS.values() if how in self.rests_on}
        known.pop("taken", None)
        taken = ", ".join(f"{count} from {gpu}" for gpu, count in self.taken_from.items())
        parts = [f"{count} {how}" for how, count in known.items()]
        return ", ".join([*parts, *([taken.replace(" from", " taken from", 1)] if taken else [])])

    def to_dict(self) -> dict[str, Any]:
        return {
            "rests_on": {how: list(names) for how, names in self.rests_on.items()},
            "taken_from": list(self.taken_from),
            "validated_by": self.validated_by,
        }


@dataclass(frozen=True)
class Evidence:
    profile: str
    bases: tuple[Basis, ...]
    backed_by: str
    """In a word, what predictions for this GPU were held against."""

    def __str__(self) -> str:
        models = [f"of the {TITLES[basis.model]} model: {basis.summary}" for basis in self.bases]
        without = [
            TITLES[basis.model]
            for basis in self.bases
            if basis.validated_by is None and basis.model != "l2"
        ]
        if without:
            models.append(f"{listed(without)} not validated on {self.profile}")
        return f"numbers {'; '.join(models)}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "summary": str(self),
            "backed_by": self.backed_by,
            **{basis.model: basis.to_dict() for basis in self.bases},
        }


def evidence(profile: HardwareProfile) -> Evidence:
    return Evidence(
        profile.name, tuple(_basis(profile, model) for model in MODELS), profile.backed_by
    )


@dataclass(frozen=True)
class Group:
    """Quantities of one group that are known in one way: `how` as in `Basis.rests_on`, with the GPUs they are from."""

    group: str
    how: str
    numbers: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"group": self.group, "how": self.how, "numbers": list(self.numbers)}


def by_group(profile: HardwareProfile) -> tuple[Group, ...]:
    def how(name: str) -> str:
        word = WORDS[profile.kinds[name]]
        return f"{word} from {profile.taken[name]}" if name in profile.taken else word

    by_how = {group: _grouped(_known(profile, names), how) for group, names in GROUPS.items()}
    return tuple(
        Group(group, how, names) for group, known in by_how.items() for how, names in known.items()
    )


def _grouped(names: Iterable[str], of: Callable[[str], str]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for name in names:
        groups[of(name)] = (*groups.get(of(name), ()), name)
    return groups


def unmeasured_rates(profile: HardwareProfile) -> tuple[str, ...]:
    """What decides times and was not measured on the GPU itself, nor published for it."""
    # Tables by dtype count once, by their first entry: reversed, so that the first is what stays in the dict.
    names = {
        name.partition(".")[0]: profile.kinds[name]
        for name in reversed(_known(profile, tuple(RATES_KNOWN)))
    }
    return tuple(name for name in RATES_KNOWN if names.get(name, "measured") not in OWN)


def borrowed_l2(profile: HardwareProfile) -> tuple[str, ...]:
    """What decides how much the L2 keeps and is another GPU's, or assumed."""
    return tuple(name for name in L2_KNOWN if profile.kinds.get(name) in BORROWED)


def _basis(profile: HardwareProfile, model: str) -> Basis:
    names = read_by(profile, model)
    rests_on = _grouped(names, lambda name: WORDS[profile.kinds[name]])
    # GPUs that numbers were taken from, the one that gave most first: the summary names them in this order.
    taken = Counter(profile.taken[name] for name in names if name in profile.taken)
    return Basis(model, rests_on, dict(taken.most_common()), profile.validation.get(model))


def read_by(profile: HardwareProfile, model: str) -> list[str]:
    """The quantities that the profile knows and the model reads, tables by dtype with every dtype of a problem."""
    return _known(profile, MODELS[model])


def _known(profile: HardwareProfile, quantities: Sequence[str]) -> list[str]:
    names = []
    for name in quantities:
        if not _is_read(profile, name):
            continue
        value = getattr(profile, name)
        if isinstance(value, Mapping):
            names += [f"{name}.{dtype}" for dtype in value if dtype in PROBLEM_DTYPES]
        elif value is not None:
            names.append(name)
    return [name for name in names if name in profile.kinds]


def _is_read(profile: HardwareProfile, name: str) -> bool:
    # An L2 of one part has no far side; parts with memory of their own send nothing across.
    if name in ("l2_side_ends", "l2_latency_far_cycles"):
        return (profile.l2_partitions or 1) > 1 and not profile.l2_apart
    if name == "pingpong_tile_cycles":
        return profile.cc in PINGPONG_CC
    # A number that a better-known one stands in for is not read, and says nothing of what a model rests on.
    return not any(getattr(profile, other) for other in REPLACED.get(name, ()))


def profile_answer(profile: HardwareProfile) -> str:
    parts = [f"{profile.name} has {profile.sm_count} SMs"]
    if profile.l2_bytes and profile.l2_apart:
        first, *behind = profile.levels
        parts.append(f"{first.count} L2s of {bytes_text(first.bytes_each)}")
        parts += [f"a {level.name} of {bytes_text(level.bytes)}" for level in behind]
    elif profile.l2_bytes:
        l2 = f"a {bytes_text(profile.l2_bytes)} L2"
        if (profile.l2_partitions or 1) > 1:
            l2 += f" in {profile.l2_partitions} partitions"
        if profile.l2_effective_capacity_fraction and profile.l2_partitions:
            effective_bytes = (
                profile.l2_bytes * profile.l2_effective_capacity_fraction / profile.l2_partitions
            )
            keeps = "keeps" if profile.l2_partitions == 1 else "keep"
            l2 += f" that {keeps} {bytes_text(effective_bytes)} of data shared by all SMs"
        parts.append(l2)
    if profile.dram_bandwidth_bytes_per_s:
        memory = "" if profile.memory_bytes is None else f"{bytes_text(profile.memory_bytes)} of "
        rate = f"{memory}memory at {bytes_text(profile.dram_bandwidth_bytes_per_s)}/s"
        measured = profile.dram_bandwidth_measured_bytes_per_s
        parts.append(f"{rate} ({bytes_text(measured)}/s measured)" if measured else rate)
    checked = [TITLES[one.model] for one in evidence(profile).bases if one.validated_by is not None]
    return f"{listed(parts)}. {f'{listed(checked)} checked on it' if checked else 'Not checked on it'}."
