"""Check bits of ECC in the same memory: what a counter of an L4 or T4 shows beside the data."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.evidence.validate import compare
from iosim.evidence.validate.rows import read
from iosim.hardware.profile import HardwareProfile, list_profiles, load_profile
from iosim.kernel.traffic import CHECK_BITS, Traffic, TrafficRow
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.check_bits import check_bits

SMALL = AttentionProblem(batch=128, heads=3, seq_q=64, head_dim=64, dtype="fp32")
ONCE = 128 * 3 * 64 * 64 * 4
"""Bytes of Q, K, V, O and, as there are 64 keys, of the scores."""
GDDR6_WITH_ECC = ("a10", "a10g", "a40", "l4", "l20", "l40", "l40s", "rtx-a5000", "rtx-a6000", "t4")
COUNTED = {"scores": 14_774_656 / (2 * ONCE), "values": 14_377_984 / (2 * ONCE)}
"""Read by launches of an L4 over their data (jacobemmerson/tritonformer @96df15fb): the constants rest on others."""


def test_products_of_an_l4_read_what_its_counter_shows() -> None:
    traffic = Traffic(tuple(TrafficRow(name, "hbm", "X", "read", 2 * ONCE) for name in COUNTED))
    checks = check_bits(traffic, load_profile("l4"))
    for name, counted in COUNTED.items():
        predicted = 1 + checks.total("hbm", "read", launch=name) / (2 * ONCE)
        assert predicted == pytest.approx(counted, rel=0.05)


def test_what_is_written_fetches_check_bits_too() -> None:
    traffic = Traffic((TrafficRow("main", "hbm", "O", "write", 16_000),))
    checks = check_bits(traffic, load_profile("t4"))
    assert checks.total("hbm", "write") == 1000  # a sector in 16
    assert checks.total("hbm", "read") == 1000  # each is read before a part of it is written


def test_counters_hold_check_bits_and_times_do_not() -> None:
    with_ecc = predict(SMALL, "cutlass", "l4")
    without = predict(SMALL, "cutlass", "l4", ecc="off")
    assert without.check_bits.total == 0
    assert with_ecc.hbm_payload == without.hbm
    assert with_ecc.hbm.read == without.hbm.read + with_ecc.check_bits.read
    assert with_ecc.check_bits.read >= without.hbm.read / 8
    assert with_ecc.time == without.time
    assert with_ecc.time_range == without.time_range
    assert with_ecc.l2_hit_rate == without.l2_hit_rate
    assert with_ecc.to_dict()["check_bits"]["read"] == with_ecc.check_bits.read


@pytest.mark.parametrize("name", list_profiles())
def test_boards_whose_check_bits_lie_elsewhere_have_none(name: str) -> None:
    profile = load_profile(name)
    total = predict(
        AttentionProblem(heads=2, seq_q=256), "naive", profile, method="capacity"
    ).check_bits.total
    assert (total > 0) == (profile.ecc == "inline")
    assert profile.ecc is None or name in GDDR6_WITH_ECC


def test_ecc_is_switched_on_where_the_board_has_it() -> None:
    assert predict(SMALL, "naive", "rtx-a6000").check_bits.total == 0
    assert predict(SMALL, "naive", "rtx-a6000", ecc="on").check_bits.total > 0
    with pytest.raises(InputError, match="ecc on: profile 'a100-sxm-80gb' knows no check bits"):
        predict(SMALL, "naive", "a100", ecc="on")
    with pytest.raises(
        InputError, match=r"ecc.*'maybe' is not known; accepted: delivered, on, off"
    ):
        predict(SMALL, "naive", "a100", ecc="maybe")


def test_the_answer_says_how_much_is_check_bits(capsys: pytest.CaptureFixture[str]) -> None:
    shape = [
        "--batch",
        "128",
        "--heads",
        "3",
        "--seq-len",
        "64",
        "--head-dim",
        "64",
        "--dtype",
        "fp32",
    ]
    assert main(["predict", "--gpu", "l4", "--kernel", "naive", *shape]) == 0
    text = capsys.readouterr().out
    assert "(the compulsory bytes; 2.36 MB check bits)" in text
    assert re.search(r"of it check bits +2.36 MB", text)
    assert main(["predict", "--gpu", "l4", "--kernel", "naive", *shape, "--ecc", "off"]) == 0
    assert "check bits" not in capsys.readouterr().out
    assert (
        main(["check-claim", "--gpu", "l4", "--kernel", "naive", *shape, "--hbm", "18.87MB"]) == 0
    )
    assert "naive's HBM bytes without check bits, read (18.87 MB" in capsys.readouterr().out


def test_the_range_holds_fewest_and_most_check_bits() -> None:
    p = predict(SMALL, "naive", "l4")
    assert p.hbm_range is not None
    least, highest = p.hbm_range.read
    data = p.hbm_payload.read
    assert least <= data * 17 / 16 < p.hbm.read < data * 19 / 16 <= highest


def test_validate_compares_with_check_bits(tmp_path: Path, profile_of_l4: HardwareProfile) -> None:
    sizes = "batch,heads,kv_heads,seq_q,seq_k,head_dim"
    header = f"implementation,{sizes},dtype,causal,window,hbm_read,hbm_write,l2_read,l2_write"
    (tmp_path / "l4.csv").write_text(
        f"{header}\ncutlass,128,3,3,64,64,64,fp32,0,,21300000,,,\n", encoding="utf-8"
    )
    rows = read(tmp_path / "l4.csv")
    (residual,) = compare(rows, profile_of_l4).residuals
    (bare,) = compare(rows, dataclasses.replace(profile_of_l4, ecc=None)).residuals
    assert residual.predicted == bare.predicted + residual.check_bits
    assert (residual.check_bits > 0, bare.check_bits, residual.regime) == (True, 0, bare.regime)
    assert json.loads(json.dumps(residual.to_dict()))["check_bits"] == residual.check_bits


@pytest.fixture
def profile_of_l4() -> HardwareProfile:
    return load_profile("l4")


def test_rows_of_traffic_name_check_bits() -> None:
    traffic = predict(SMALL, "naive", "t4").traffic
    assert (CHECK_BITS, "read") in traffic.tensors("hbm")
    assert (CHECK_BITS, "read") not in traffic.payload.tensors("hbm")
