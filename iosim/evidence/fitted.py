"""Every fitted number of the package with its present value; `iosim/base/fitted.toml` says where each stands, and on
which rows it was fitted. tests/evidence/test_fitted.py finds fitted numbers that are missing there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from typing import Any

from iosim.base.fitted import registry
from iosim.base.records import dataclass
from iosim.catalog.libraries.loader import entry
from iosim.catalog.serving import read_stack, stack_names
from iosim.hardware.profile import cc_text, list_profiles, load_profile
from iosim.studies.distributed.links import load_link

SERVING = "odd rows of published_latency.csv, open rows of published_stacks.csv"
"""On which the gaps between the calls of serving stacks were fitted."""


@dataclass(frozen=True)
class Fitted:
    """A fitted number.

    Attributes:
        gpu: in whose profile it stands, or of which compute capabilities; empty: the model's, a catalog entry's or a
            stack's.
        rows: on which it was fitted.
        even_rows_in_sight: True where the errors of the even rows were looked at, too, as it was settled.
    """

    name: str
    value: float
    gpu: str
    rows: str
    even_rows_in_sight: bool = False


def fitted() -> Iterator[Fitted]:
    for section in registry()["constant"]:
        module = import_module(section["module"])
        for name in section["names"]:
            value = getattr(module, name)
            numbered = (
                {f"{name}[{key}]": v for key, v in value.items()}
                if isinstance(value, dict)
                else {name: value}
            )
            yield from (_entry(section, label, float(number)) for label, number in numbered.items())
    for section in registry()["profile"]:
        for gpu in section["gpus"]:
            yield from (
                _entry(section, name, load_profile(gpu).need(name), gpu)
                for name in section["names"]
            )
    for section in registry()["capability"]:
        capabilities = section["compute_capabilities"]
        (first, *_) = gpus_of(capabilities)
        yield from (
            _entry(
                section, name, load_profile(first).need(name), f"cc {' and '.join(capabilities)}"
            )
            for name in section["names"]
        )
    for section in registry()["catalog"]:
        kernel = section["kernel"]
        yield from (
            _entry(section, f"{key} of {kernel}", _stated(kernel, key)) for key in section["names"]
        )
    for section in registry()["link"]:
        link = load_link(section["link"], load_profile(section["gpu"]))
        numbers = {
            "latency_s": link.latency_s,
            "unhidden": link.unhidden,
            **{f"achieved.{quantity}": share for quantity, share in link.achieved.items()},
        }
        yield from (
            _entry(section, f"{name} of {link.name}", value) for name, value in numbers.items()
        )
    for stack in stack_names():
        if gap := read_stack(stack).call_gap_s:
            yield Fitted(f"call_gap_s of {stack}", gap, "", SERVING)


def _entry(section: Mapping[str, Any], name: str, value: float, gpu: str = "") -> Fitted:
    """A number of an entry of the registry."""
    return Fitted(name, value, gpu, section["rows"], section.get("even_rows_in_sight", False))


def gpus_of(capabilities: Collection[str]) -> list[str]:
    """The shipped GPUs of these compute capabilities."""
    return [name for name in list_profiles() if cc_text(load_profile(name).cc) in capabilities]


def _stated(kernel: str, key: str) -> float:
    of_pass, _, name = key.rpartition(".")
    rows = {row["name"]: row for row in entry(kernel).get("backward_pass", ())}
    spills = [row for row in entry(kernel).get("spill", ()) if name in row]
    if spills:
        rows["spill"] = spills[-1]
    kernel_table = entry(kernel)["kernel"]
    return float({"": kernel_table, "options": kernel_table.get("options"), **rows}[of_pass][name])
