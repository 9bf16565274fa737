"""On what predictions rest: values taken from other GPUs by name, and the line that says so."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest
from effort import quick_every

from iosim.base.errors import InputError
from iosim.catalog.libraries import entry_names, resolve
from iosim.commands.cli import main
from iosim.hardware.profile import HardwareProfile, list_profiles, load_profile
from iosim.hardware.quantities import QUANTITIES
from iosim.hardware.trust import MODELS, evidence, read_by
from iosim.kernel.conditions import Conditions
from iosim.prediction.call import Call
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.l2 import model
from iosim.readers.timing.energy import is_known


def own(**more: Any) -> dict[str, Any]:
    entries = {
        "sm_count": 108,
        "boost_clock_hz": 1.4e9,
        "l2_bytes": 41_943_040,
        "dram_bandwidth_bytes_per_s": 2e12,
    }
    return {
        "schema": 1,
        "name": "mine",
        "compute_capability": "8.0",
        **{name: {"value": value, "source": "test"} for name, value in entries.items()},
        **more,
    }


def test_a_value_is_taken_from_another_gpu_by_name() -> None:
    b200, gb200 = load_profile("b200"), load_profile("gb200")
    assert (b200.l2_ways, b200.kind_of("l2_ways"), b200.taken["l2_ways"]) == (
        gb200.l2_ways,
        "taken",
        "gb200",
    )
    assert b200.source_of("l2_ways") == f"gb200: {gb200.source_of('l2_ways')}"
    assert gb200.kind_of("l2_ways") == "inferred"
    profile = HardwareProfile.from_dict(own(l2_dirty_fraction={"from": "h200-sxm"}))
    assert (profile.l2_dirty_fraction, profile.taken["l2_dirty_fraction"]) == (0.49, "h200-sxm")


@pytest.mark.parametrize(
    ("entry", "refused"),
    [
        ({"from": "h300"}, r"l2_ways\.from: 'h300' is no shipped profile"),
        ({"from": "b200"}, r"l2_ways\.from: b200 does not state it either"),
        ({"from": "h100-sxm", "value": 12}, r"l2_ways: 12 is not what h100-sxm states \(16\)"),
        ({"from": "h100-sxm", "kind": "measured"}, r"l2_ways\.kind: contradicts from"),
        ({"kind": "taken", "value": 16, "source": "somewhere"}, r"l2_ways\.from: missing"),
        ({"value": 16}, r"l2_ways\.source: missing"),
    ],
)
def test_what_cannot_be_taken_is_refused(entry: dict[str, Any], refused: str) -> None:
    with pytest.raises(InputError, match=refused):
        HardwareProfile.from_dict(own(l2_ways=entry))


@pytest.mark.parametrize("name", list_profiles())
def test_nothing_is_guessed_that_the_profile_does_not_say(name: str) -> None:
    """The L2 model is made of the profile alone, and each number that it needs stands there with its kind."""
    profile = load_profile(name)
    for quantity in (
        "l2_partitions",
        "l2_ways",
        "l2_dirty_fraction",
        "sm_speed_spread_fraction",
        "dram_latency_cycles",
    ):
        assert profile.source_of(quantity)
        with pytest.raises(InputError, match=quantity):
            model(dataclasses.replace(profile, **{quantity: None}))


def test_evidence_counts_every_kind() -> None:
    assert str(evidence(load_profile("h200"))).startswith(
        "numbers of the L2 model: 9 measured, 1 published; of the HBM"
    )
    t4 = str(evidence(load_profile("t4")))
    assert (
        "of the HBM model: 1 measured, 3 inferred, 1 taken from h200-sxm; of the time model: 2 measured"
        in t4
    )
    assert "HBM and time not validated on t4" in t4
    bare = HardwareProfile.from_dict(own())
    (l2, _, _) = evidence(bare).bases
    assert l2.taken_from == {"h100-sxm": 3, "h200-sxm": 1}
    assert l2.rests_on["published"] == ("l2_bytes", "line_bytes")
    assert l2.summary == "2 published, 3 assumed, 3 taken from h100-sxm, 1 from h200-sxm"
    measured = dataclasses.replace(bare, kinds=dict.fromkeys(bare.kinds, "measured"), taken={})
    for basis in evidence(measured).bases:
        assert basis.summary == f"{len(read_by(measured, basis.model))} measured"
    for basis in evidence(load_profile("h200")).bases:
        assert sum(map(int, re.findall(r"\d+(?= [a-z])", basis.summary))) == len(
            read_by(load_profile("h200"), basis.model)
        )


class Watched(HardwareProfile):
    """A profile that remembers which of its quantities were read."""

    def __getattribute__(self, name: str) -> Any:
        if name in QUANTITIES:
            READ.add(name)
        return object.__getattribute__(self, name)


READ: set[str] = set()
SHAPES: tuple[dict[str, Any], ...] = (
    {"heads": 4, "seq_q": 512, "mask": "causal"},
    {"heads": 4, "seq_q": 512, "head_dim": 64, "passes": "fwd+bwd"},
    {"batch": 2, "heads": 8, "seq_q": 1, "seq_k": 4096, "head_dim": 128},
    {"heads": 2, "seq_q": 256, "head_dim": 64, "dtype": "fp32"},
)


@pytest.mark.parametrize(
    "name",
    quick_every(["h200-sxm", "l4", "rtx-5090", "t4", "a100-sxm-80gb", "h100-sxm", "b200"], 3),
)
def test_models_name_every_quantity_that_times_and_replays_read_and_no_other(name: str) -> None:
    """Watched over every kernel of the catalog, launched in every way; but for SageAttention's, whose int8 is no
    problem's type."""
    profile = load_profile(name)
    watched = Watched(
        **{field.name: getattr(profile, field.name) for field in dataclasses.fields(profile)}
    )
    seen: set[str] = set()
    READ.clear()
    model(watched)
    seen |= READ
    for shape in SHAPES:
        problem = AttentionProblem(**{"head_dim": 128, "dtype": "fp16", **shape})
        for kernel in (name for name in entry_names() if name != "sage"):
            try:
                call = Call.of(problem, resolve(kernel, problem, profile), profile)
            except InputError:
                continue
            traffic, call = (
                call.counted + call.capacity(),
                dataclasses.replace(call, profile=watched),
            )
            READ.clear()
            for how in ({}, {"launched": "graph", "l2_start": "warm"}, {"clocks": "sustained"}):
                call.time(traffic, Conditions(**how))  # type: ignore[arg-type]
            seen |= READ
    known = {quantity for quantity in seen if getattr(profile, quantity) not in (None, {})}
    quantities = {quantity.partition(".")[0] for of in MODELS for quantity in read_by(profile, of)}
    one_sided = (
        {"l2_side_ends"} if profile.l2_partitions == 1 else set()
    )  # the model holds it, and all SMs are on one side
    of_energy = (
        set()
        if is_known(profile)
        else {"energy_factor", "on_chip_energy_share", "power_w", "energy_clock_exponent"}
    )
    of_occupancy = {
        "shared_memory_per_sm_bytes"
    }  # of every GPU; frames of spills are weighed by it
    assert (
        known - one_sided - of_energy - of_occupancy == quantities - of_energy
    )  # taken energies change no time


def test_a_prediction_says_what_it_rests_on(capsys: pytest.CaptureFixture[str]) -> None:
    prediction = predict(AttentionProblem(seq_q=256, heads=1), "fa2", "l4")
    assert prediction.to_dict()["evidence"]["summary"] in prediction.to_text()
    assert set(prediction.to_dict()["evidence"]) == {"summary", "sm_l2", "backed_by", *MODELS}
    assert json.dumps(prediction.to_dict()["evidence"])
    assert main(["profiles", "show", "l4"]) == 0
    out = capsys.readouterr().out
    assert str(evidence(load_profile("l4"))) in out
    assert main(["profiles", "show", "l4", "--format", "json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["evidence"] | {"sm_l2": prediction.exactness}
        == prediction.to_dict()["evidence"]
    )


def test_every_quantity_of_a_model_is_one_of_the_profile() -> None:
    profile = load_profile("h200")
    for name in MODELS:
        assert read_by(profile, name)
        assert all(hasattr(profile, quantity) for quantity in MODELS[name])
