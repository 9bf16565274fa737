"""One word for what a GPU's answers rest on, and the GPUs that people have."""

from __future__ import annotations

import json

import pytest

from iosim.base.errors import InputError
from iosim.catalog.libraries import resolve
from iosim.commands.cli import main
from iosim.hardware.profile import HardwareProfile, list_profiles, load_profile
from iosim.hardware.profile_file import BACKING
from iosim.prediction.confidence import backing
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem

SMALL = AttentionProblem(heads=4, seq_q=256, head_dim=64, mask="causal")
PEOPLES = (
    "a10g",
    "rtx-2080-ti",
    "rtx-3080",
    "rtx-4080",
    "rtx-5060-ti",
    "rtx-5080",
    "rtx-a5000",
    "l20",
    "a800",
    "gb10",
    "gh200",
    "mi325x",
    "mi350x",
)


@pytest.mark.parametrize("name", list_profiles())
def test_the_word_agrees_with_what_was_validated(name: str) -> None:
    profile = load_profile(name)
    assert profile.backed_by in BACKING
    if profile.backed_by == "measured":
        assert {"hbm", "time"} <= set(profile.validation)
    if "hbm" in profile.validation:
        assert profile.backed_by in ("measured", "public counters")
    assert HardwareProfile.from_dict(profile.to_dict()).backed_by == profile.backed_by


def test_the_first_line_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    for gpu, word in (
        ("h200", "measured"),
        ("l4", "public counters"),
        ("t4", "public times"),
        ("gb10", "nothing"),
    ):
        assert (
            main(["predict", "--gpu", gpu, "--kernel", "naive", "--seq-len", "256", "--heads", "2"])
            == 0
        )
        confidence = "checked against counters." if word == "measured" else f"Backed by {word}."
        assert confidence in capsys.readouterr().out.splitlines()[0]
    both = [predict(SMALL, "naive", gpu, method="capacity") for gpu in ("h200", "gb10")]
    assert backing(both) == "Backed by measured on h200-sxm, nothing on gb10"
    # FlashAttention-3's kernel for Ampere was never counted, whatever counters of an A100 there are.
    uncounted = predict(SMALL, "fa3-sm80", "a100")
    assert backing([uncounted]) == "Backed by public counters of other kernels"
    assert backing([uncounted, predict(SMALL, "fa2", "a100")]) == "Backed by public counters"
    assert backing([predict(SMALL, "fa3", "h100")]) == "Backed by measurements of other kernels"
    assert (
        main(["predict", "--gpu", "t4", "--seq-len", "256", "--heads", "2", "--format", "json"])
        == 0
    )
    assert (
        json.loads(capsys.readouterr().out)["predictions"][0]["evidence"]["backed_by"]
        == "public times"
    )


def test_another_word_is_refused() -> None:
    data = load_profile("t4").to_dict() | {"backed_by": "hearsay"}
    with pytest.raises(InputError, match=r"backed_by.*'hearsay' is not known"):
        HardwareProfile.from_dict(data)


@pytest.mark.parametrize("name", PEOPLES)
def test_gpus_that_people_have_answer(name: str) -> None:
    profile = load_profile(name)
    assert all(
        profile.source_of(quantity)
        for quantity in ("sm_count", "boost_clock_hz", "l2_bytes", "memory_bytes")
    )
    p = predict(SMALL, profile=name)
    assert p.time_s > 0
    assert p.total("hbm", "read") > 0


@pytest.mark.parametrize(("cc", "ctas"), [("8.7", 16), ("11.0", 24), ("12.1", 24)])
def test_compute_capabilities_of_others_are_known(cc: str, ctas: int) -> None:
    entries = {
        "sm_count": 20,
        "boost_clock_hz": 1.5e9,
        "l2_bytes": 4 << 20,
        "dram_bandwidth_bytes_per_s": 2e11,
        "fp32_flops_per_s": 5e12,
    }
    quantities = {name: {"value": value, "source": "test"} for name, value in entries.items()}
    rates = {"fp16": {"value": 2e13, "source": "test"}, "bf16": {"value": 2e13, "source": "test"}}
    head = {"schema": 1, "name": "mine", "compute_capability": cc}
    profile = HardwareProfile.from_dict({**head, **quantities, "tensor_flops_per_s": rates})
    assert profile.max_blocks_per_sm == ctas
    assert resolve("flash", SMALL, profile).name == "flash"
    assert predict(SMALL, "flash", profile).time_s > 0
