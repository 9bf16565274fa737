"""A volunteer's file: what a calibration sends, what takes it in, and what times alone say of an L2."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from scripts import ROOT

from iosim.commands.cli import main
from iosim.evidence.measure.calibrate import derive, sound
from iosim.evidence.measure.fit import half_missing_bytes, misses_by_time, points_of
from iosim.hardware.profile import added_profiles, list_profiles, load_profile

RECORDED = ROOT / "tests" / "data" / "calibrate_h200.json"
RAW: dict[str, Any] = json.loads(RECORDED.read_text())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IOSIM_PROFILES", str(tmp_path / "own" / "profiles"))
    return tmp_path / "own" / "profiles"


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    """The bundle of a calibration without a profiler, of a GPU that no shipped profile describes."""
    raw = RAW | {"gpu": "NVIDIA Strange 1", "counters": None, "no_counters": "no profiler here"}
    (tmp_path / "raw.json").write_text(json.dumps(raw))
    bundle = tmp_path / "strange.json"
    assert main(["calibrate", "--from", str(tmp_path / "raw.json"), "--bundle", str(bundle)]) == 0
    return bundle


def test_a_bundle_holds_the_curves_and_the_profile_and_is_small(sent: Path) -> None:
    whole = json.loads(sent.read_text())
    assert whole["raw"]["l2_curves"] == RAW["l2_curves"]
    assert whole["gpu"] == "NVIDIA Strange 1"
    assert 'name = "strange"' in whole["profile"]
    assert sent.stat().st_size < 100_000


def test_what_was_added_is_listed_and_predicts(
    sent: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profiles", "add", str(sent)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"strange: {place / 'strange.toml'}"
    assert load_profile("Strange").l2_bytes == RAW["l2_bytes"]
    assert json.loads((place / "strange.json").read_text())["l2_curves"] == RAW["l2_curves"]
    assert main(["profiles", "list", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)["profiles"]
    assert {row["name"]: row["from"] for row in listed} == dict.fromkeys(
        list_profiles(), "iosim"
    ) | {"strange": "you"}
    assert main(["predict", "--gpu", "strange", "--kernel", "flash", "--seq-len", "512"]) == 0
    assert "flash on strange" in capsys.readouterr().out


def test_a_name_is_taken_once(sent: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "add", str(sent)]) == 0
    before = (place / "strange.toml").read_bytes()
    assert main(["profiles", "add", str(sent)]) == 2
    assert "--name 'strange' is taken by" in capsys.readouterr().err
    assert main(["profiles", "add", str(sent), "--name", "h200"]) == 2
    assert "is the shipped profile h200-sxm" in capsys.readouterr().err
    assert main(["profiles", "add", str(sent), "--name", "../elsewhere"]) == 2
    assert main(["profiles", "add", str(sent), "--name", "second"]) == 0
    assert main(["profiles", "add", str(sent), "--replace"]) == 0
    assert (place / "strange.toml").read_bytes() == before
    assert sorted(added_profiles()) == ["second", "strange"]
    assert load_profile("second").name == "second"


def test_a_profile_file_is_added_too(tmp_path: Path, place: Path) -> None:
    shipped = ROOT / "hardware_profiles" / "l4.toml"
    assert main(["profiles", "add", str(shipped), "--name", "my-l4"]) == 0
    assert load_profile("my-l4").l2_bytes == load_profile("l4").l2_bytes
    # Without raw numbers nothing is kept beside it.
    assert [path.name for path in place.iterdir()] == ["my-l4.toml"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b["raw"].update(schema=1), "has schema 1"),
        (lambda b: b["raw"].update(sms=-3), "lack sms"),
        (lambda b: b.update(iosim_bundle=99), "no bundle of version 1"),
        (lambda b: b.update(profile=3), "lacks its raw numbers or its profile"),
        (lambda b: b.update(profile="name = ["), "is not valid TOML"),
        (lambda b: b["raw"].update(compute_capability="99.0"), "lacks what predictions need"),
    ],
)
def test_a_bad_bundle_changes_nothing(
    change: Any, message: str, sent: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads(sent.read_text())
    change(whole)
    sent.write_text(json.dumps(whole))
    capsys.readouterr()
    assert main(["profiles", "add", str(sent)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not place.exists() or not list(place.iterdir())


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00"])
def test_what_is_no_bundle_is_one_line(
    text: str, tmp_path: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "it.json").write_text(text)
    assert main(["profiles", "add", str(tmp_path / "it.json")]) == 2
    assert main(["profiles", "add", str(tmp_path / "none.json")]) == 2
    assert main(["profiles", "add", str(tmp_path / "none.toml")]) == 2
    assert capsys.readouterr().err.count("\n") == 3


def test_a_broken_file_among_the_users_own_leaves_the_others_listed(
    sent: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profiles", "add", str(sent)]) == 0
    (place / "broken.toml").write_text("sm_count = [")
    (place / "wrong.toml").write_text('schema = 1\nname = "wrong"\n')
    capsys.readouterr()
    assert main(["profiles", "list", "--format", "json"]) == 0
    printed = capsys.readouterr()
    listed = json.loads(printed.out)
    assert {row["name"] for row in listed["profiles"]} == {*list_profiles(), "strange"}
    assert len(listed["unreadable"]) == 2
    for name, line in zip(("broken.toml", "wrong.toml"), listed["unreadable"], strict=True):
        assert str(place / name) in line
        assert line in printed.err
    assert main(["profiles", "list"]) == 0
    assert "strange" in capsys.readouterr().out
    assert main(["predict", "--gpu", "broken", "--seq-len", "64"]) == 2
    assert "broken.toml' is not valid TOML" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "clean_name"),
    [
        ("con.toml", None),
        ("CON", None),
        ("nul.json", None),
        ("mine.toml", "mine"),
        ("mine.toml.toml", "mine"),
        ("mine.json", "mine"),
        ("a.b-1", "a.b-1"),
        ("mine.", None),
        ("..", None),
        ("-x", None),
        ("m\u00fcller", None),
        ("x" * 65, None),
    ],
)
def test_names_of_profiles_are_clean(
    typed: str,
    clean_name: str | None,
    sent: Path,
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["profiles", "add", str(sent), f"--name={typed}"])
    assert code == (2 if clean_name is None else 0)
    assert sorted(added_profiles()) == ([] if clean_name is None else [clean_name])
    capsys.readouterr()
    raw = str(tmp_path / "raw.json")
    assert main(["calibrate", "--from", raw, f"--name={typed}"]) == code
    printed = capsys.readouterr()
    assert (f'name = "{clean_name}"' in printed.out) == (clean_name is not None)
    assert clean_name is not None or "--name" in printed.err


def test_the_profile_is_made_of_the_numbers_not_of_what_is_sent(sent: Path, place: Path) -> None:
    whole = json.loads(sent.read_text())
    whole["profile"] = (
        whole["profile"].replace("sm_count = {", "sm_count = { #").replace("132", "1")
    )
    whole["profile"] = 'name = "strange"'
    sent.write_text(json.dumps(whole))
    assert main(["profiles", "add", str(sent)]) == 0
    assert load_profile("strange").sm_count == RAW["sms"]


def test_times_show_the_cliff_of_an_h200_later_than_counters_do() -> None:
    by_time = misses_by_time(sound(RAW, []))
    (low, before), (high, after) = next(
        pair for pair in pairwise(by_time) if pair[0][1] < 0.5 <= pair[1][1]
    )
    half_by_time = low + (high - low) * (0.5 - before) / (after - before)
    half_by_counters = half_missing_bytes(points_of(RAW["counters"]["rows"]), "private_scan")
    assert half_by_counters is not None
    assert half_by_time / RAW["l2_bytes"] == pytest.approx(0.97, abs=0.005)
    assert half_by_counters / RAW["l2_bytes"] == pytest.approx(0.77, abs=0.005)


def test_no_constant_of_the_l2_comes_from_times() -> None:
    entries = derive(RAW | {"counters": None})
    assert not {
        "l2_partitions",
        "l2_ways",
        "l2_effective_capacity_fraction",
        "l2_dirty_fraction",
    } & set(entries)
