"""The time by terms: what each is worth adds up to the time, and each is found by its name."""

from __future__ import annotations

import inspect
import json
import math
from pathlib import Path

import pytest
from scripts import ROOT, load_script

from iosim.commands.cli import main
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing.breakdown import MODULES, ordered_terms
from iosim.readers.timing.terms import TERMS, Scope, recorded, term, without
from iosim.studies.terms import constants_of, terms_of

ONE_CALL = "--gpu a100 --kernel fa2 --heads 4 --seq-len 512 --head-dim 64"
CALLS = [
    (
        "h100",
        "fa2",
        {"heads": 16, "seq_q": 2048, "head_dim": 128, "mask": "causal", "dtype": "bf16"},
    ),
    ("h100", "cudnn", {"heads": 8, "seq_q": 1000, "head_dim": 64, "dtype": "bf16"}),
    ("t4", "cutlass", {"heads": 8, "seq_q": 1024, "head_dim": 64}),
    ("a100", "fa2", {"batch": 8, "heads": 8, "seq_q": 1, "seq_k": 8192, "head_dim": 128}),
    ("a100", "fa2", {"heads": 8, "seq_q": 1024, "head_dim": 64, "passes": "fwd+bwd"}),
    ("a100", "cutlass", {"heads": 4, "seq_q": 1024, "head_dim": 128, "passes": "bwd"}),
    ("l4", "naive", {"heads": 4, "seq_q": 1024, "head_dim": 64}),
    ("b200", "fa4", {"heads": 16, "seq_q": 2048, "head_dim": 128, "dtype": "bf16"}),
]


@pytest.mark.parametrize(("gpu", "kernel", "fields"), CALLS)
def test_terms_add_up_to_the_time(gpu: str, kernel: str, fields: dict[str, object]) -> None:
    prediction = predict(AttentionProblem(**fields), kernel, gpu, method="capacity")
    launches = terms_of(prediction)
    total = math.fsum(w.seconds for launch in launches for w in launch.breakdown.terms)
    assert total == pytest.approx(prediction.time_s, rel=1e-3)
    for launch, time in zip(launches, prediction.time.launches, strict=True):
        assert launch.breakdown.time.total_s == pytest.approx(time.total_s)
        assert launch.breakdown.rest_s == pytest.approx(0.0, abs=1e-12)


def test_the_resource_that_bounds_a_launch_is_worth_all_of_its_time() -> None:
    prediction = predict(
        AttentionProblem(heads=16, seq_q=2048, head_dim=128), "fa2", "a100", method="capacity"
    )
    (launch,) = terms_of(prediction)
    assert prediction.bound_by == "tensor"
    assert launch.breakdown.terms[0].term.name == "products"
    assert launch.breakdown.terms[0].seconds == pytest.approx(
        launch.breakdown.time.seconds["tensor"], rel=0.05
    )


@pytest.mark.parametrize(
    ("gpu", "kernel", "fields"),
    [
        ("l40s", "ibm-triton", {"heads": 4, "seq_q": 2249, "head_dim": 128, "mask": "causal"}),
        ("l4", "flash-attn", {"heads": 8, "seq_q": 5050, "head_dim": 96, "mask": "causal"}),
        ("rtx-a6000", "triton", {"heads": 8, "seq_q": 5646, "head_dim": 128, "mask": "causal"}),
    ],
)
def test_no_term_is_worth_less_than_nothing(
    gpu: str, kernel: str, fields: dict[str, object]
) -> None:
    """Without the term of shared memory warps still fetch fragments, and other CTAs' products still hide what waits:
    it was worth up to -6 % of a time."""
    prediction = predict(AttentionProblem(**fields, dtype="bf16"), kernel, gpu, method="capacity")
    for launch in terms_of(prediction):
        least = min(w.seconds for w in launch.breakdown.terms)
        assert least > -1e-3 * prediction.time_s


def test_every_term_is_found_by_its_name_in_one_step() -> None:
    for ordered in ordered_terms():
        file, function = ordered.place.split(": ")
        assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8")
        assert f'"{ordered.name}"' in (ROOT / file).read_text(encoding="utf-8")
        assert Path(file).stem in MODULES


def test_every_constant_of_a_term_is_there_and_read_by_it() -> None:
    profile = load_profile("h100")
    for listed in TERMS.values():
        source = inspect.getsource(inspect.getmodule(listed.function))  # type: ignore[arg-type]
        for constant in constants_of(listed, profile):
            assert constant.name in source or constant.name in HardwareProfile.__dataclass_fields__
            assert constant.kind != "unknown" or constant.value is None, (listed.name, constant)


def test_constants_say_whether_they_are_fitted() -> None:
    (norm,) = constants_of(TERMS["L2 beside computing"], load_profile("h100"))
    assert (norm.name, norm.value, norm.kind) == ("OVERLAP_NORM", 2.8, "fitted")
    assert "odd calls" in norm.source
    masks = constants_of(TERMS["mask"], load_profile("h100"))
    assert {constant.kind for constant in masks} == {"source"}


def test_a_term_that_is_switched_off_is_zero_and_comes_back() -> None:
    calls = []

    @term("a term of this test", Scope.STEP, "1", zero="never")
    def one_cycle() -> float:
        calls.append(1)
        return 1.0

    try:
        with without(["a term of this test"]), recorded() as values:
            assert one_cycle() == 0.0
            assert values == {}
        with recorded() as values:
            assert one_cycle() == 1.0
            assert values == {"a term of this test": 1.0}
        assert len(calls) == 1
        with pytest.raises(ValueError, match="two terms"):
            term("a term of this test", Scope.STEP, "1", zero="never")(one_cycle)
    finally:
        del TERMS["a term of this test"]
    with pytest.raises(KeyError), without(["no such term"]):
        pass


def test_the_command_prints_and_gives_them(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["explain", "--time", "--terms", *ONE_CALL.split()]
    assert main(call) == 0
    assert "iosim/readers/timing/step_terms.py: product_cycles" in capsys.readouterr().out
    assert main([*call, "--format", "json"]) == 0
    (prediction,) = json.loads(capsys.readouterr().out)["predictions"]
    launch, *_ = launches = prediction["terms"]
    assert math.fsum(
        term["seconds"] for launch in launches for term in launch["terms"]
    ) == pytest.approx(prediction["time_s"], rel=1e-3)
    assert {"term", "scope", "value", "seconds", "formula", "zero", "place", "constants"} <= launch[
        "terms"
    ][0].keys()


def test_terms_without_the_time_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--terms", *ONE_CALL.split()]) == 2
    assert "needs --time" in capsys.readouterr().err


def test_the_page_of_terms_is_made_of_them() -> None:
    script = load_script("benchmarks/terms.py")
    assert script.PAGE.read_text(encoding="utf-8") == script.page()
    assert {row["term"] for row in script.worth().values()} <= TERMS.keys()
