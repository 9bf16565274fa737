"""What GPUs that train copies of a model share out among themselves, and what they send for it (ZeRO, arXiv 1910.02054).

From stage 1 on a GPU keeps its share of the optimizer's states, from 2 on of the gradients, with 3 of the parameters,
whose layers are gathered where they are read: a layer's and the next one's at a time, what lies outside of layers from
the forward's begin to the backward's end (PyTorch, torch/distributed/fsdp: FSDP2 wraps layers, prefetches the next and
leaves the root as it is). Every parameter is shared out by itself, its last part padded. NB: a gradient is shared out
as soon as it is complete; buckets that collect several are not counted.
"""

from __future__ import annotations

from collections import Counter

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.hardware.profile import HardwareProfile
from iosim.studies.distributed.links import load_link
from iosim.studies.training.graph import Graph, layer_of
from iosim.studies.training.model import Parameter, Setup

OPTIMIZER, GRADIENTS, PARAMETERS = 1, 2, 3
"""Stages of ZeRO, by what they share besides what the earlier ones do."""
ROOT = -1
"""The unit of parameters outside of layers."""


def shared(setup: Setup, size: int, stage: int) -> int:
    """`size`, or a GPU's share of it from `stage` on."""
    return -(-size // setup.data_parallel) if setup.zero >= stage else size


def shares(setup: Setup, parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """The parts of trained parameters that this GPU's optimizer steps."""
    if setup.zero < OPTIMIZER:
        return parameters
    return tuple(replace(p, elements=shared(setup, p.elements, OPTIMIZER)) for p in parameters)


def master_bytes(setup: Setup, parameters: tuple[Parameter, ...]) -> int:
    """Bytes of fp32 copies that the optimizer steps in place of half parameters."""
    if not setup.master_weights:
        return 0
    return setup.state_bytes * sum(p.elements for p in shares(setup, parameters))


def step_bytes(setup: Setup, parameters: tuple[Parameter, ...]) -> int:
    """Bytes that live within the optimizer's step alone: its temporaries, and fp32 copies of half gradients, which a
    fused step converts as it reads."""
    parts = shares(setup, parameters)
    temporaries = setup.rule.step_bytes(parts, setup.state_bytes)
    if not setup.master_weights or setup.step == "fused" or not parts:
        return temporaries
    elements = [p.elements for p in parts]
    copied = max(elements) if setup.step == "loop" else sum(elements)
    return temporaries + setup.state_bytes * copied


def moved_bytes(setup: Setup, parameters: tuple[Parameter, ...]) -> int:
    """Bytes that the optimizer's step reads and writes; with fp32 masters the half parameter is written, too."""
    parts = shares(setup, parameters)
    moved = setup.rule.moved_bytes(parts, setup.state_bytes)
    if setup.master_weights:
        moved += setup.number.parameter_bytes * sum(p.elements for p in parts)
    return moved


def units(graph: Graph) -> Counter[int]:
    """Bytes of the parameters that are gathered together: a layer's by its number, and those of `ROOT`."""
    size: Counter[int] = Counter()
    for p in graph.parameters:
        layer = layer_of(p.name)
        unit = ROOT if layer is None else layer
        size[unit] += p.elements * graph.setup.number.parameter_bytes
    return size


@dataclass(frozen=True)
class Messages:
    """Bytes that each GPU receives in a step, and sends as many."""

    gathered_bytes: int
    """Parameters, from the others' shares."""
    reduced_bytes: int
    """Gradients, summed up by share."""

    @property
    def bytes(self) -> int:
        return self.gathered_bytes + self.reduced_bytes

    def seconds(self, profile: HardwareProfile) -> float | None:
        """Time over NVLink if nothing runs beside; None where the profile knows no NVLink."""
        try:
            link = load_link("nvlink", profile)
        except InputError:
            return None
        gathering = link.seconds(self.gathered_bytes, "all-gather")
        return gathering + link.seconds(self.reduced_bytes, "reduce-scatter")


def messages(graph: Graph) -> Messages:
    """What a step sends by rings (arXiv 1910.02054, section 7): of what is gathered or summed all but a GPU's own
    share. Gradients are summed and trained parameters gathered once, by an all-reduce of gradients just so; with
    stage 3 every layer is gathered for the forward and again for the backward, what lies outside of them once."""
    setup, size = graph.setup, graph.setup.number.parameter_bytes
    trained = size * sum(p.elements for p in graph.trained)
    gathered = trained
    if setup.zero >= PARAMETERS:
        of_units = units(graph)
        gathered = 2 * sum(of_units.values()) - of_units[ROOT]
    gpus = setup.data_parallel
    return Messages(gathered * (gpus - 1) // gpus, trained * (gpus - 1) // gpus)
