"""On what predictions rest: values taken from other GPUs by name, and the line that says so."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.hardware.profile import HardwareProfile, list_profiles, load_profile
from iosim.hardware.trust import MODELS, evidence, read_by
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.l2 import model


def own(**more: Any) -> dict[str, Any]:
    entries = {"sm_count": 108, "boost_clock_hz": 1.4e9, "l2_bytes": 41_943_040, "dram_bandwidth_bytes_per_s": 2e12}
    return {"schema": 1, "name": "mine", "compute_capability": "8.0",
            **{name: {"value": value, "source": "test"} for name, value in entries.items()}, **more}  # fmt: skip


def test_a_value_is_taken_from_another_gpu_by_name() -> None:
    b200, h100 = load_profile("b200"), load_profile("h100")
    assert (b200.l2_ways, b200.kind_of("l2_ways"), b200.taken["l2_ways"]) == (h100.l2_ways, "taken", "h100-sxm")
    assert b200.source_of("l2_ways") == f"h100-sxm: {h100.source_of('l2_ways')}"
    assert h100.kind_of("l2_ways") == "measured"
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


def test_evidence_follows_the_profile() -> None:
    assert str(evidence(load_profile("h200"))).startswith("L2 and HBM models measured on this GPU")
    t4 = str(evidence(load_profile("t4")))
    assert "L2 model taken from v100-sxm2, h200-sxm and a40" in t4
    assert "HBM and time not validated on t4" in t4
    bare = HardwareProfile.from_dict(own())
    (l2, _, _) = evidence(bare).bases
    assert set(l2.taken_from) == {"h100-sxm", "h200-sxm"}
    assert l2.rests_on["published"] == ("l2_bytes",)
    measured = dataclasses.replace(bare, kinds=dict.fromkeys(bare.kinds, "measured"), taken={})
    assert all(basis.summary == "measured on this GPU" for basis in evidence(measured).bases)


def test_a_prediction_says_what_it_rests_on(capsys: pytest.CaptureFixture[str]) -> None:
    made = predict(AttentionProblem(seq_q=256, heads=1), "fa2", "l4")
    assert made.to_dict()["evidence"]["summary"] in made.to_text()
    assert set(made.to_dict()["evidence"]) == {"summary", "sm_l2", *MODELS}
    assert json.dumps(made.to_dict()["evidence"])
    assert main(["profiles", "show", "l4"]) == 0
    shown = capsys.readouterr().out
    assert str(evidence(load_profile("l4"))) in shown
    assert main(["profiles", "show", "l4", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["evidence"] | {"sm_l2": made.exactness} == made.to_dict()["evidence"]


def test_every_quantity_of_a_model_is_one_of_the_profile() -> None:
    profile = load_profile("h200")
    for name in MODELS:
        assert read_by(profile, name)
        assert all(hasattr(profile, quantity) for quantity in MODELS[name])
