"""`iosim predict --against FILE --fail-above LEVEL=SHARE`: what changed since, why, and when that is a failure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from refusals import refused

import iosim
from iosim.commands.cli import main
from iosim.kernel.launch import SPILL
from iosim.studies import against
from iosim.studies.against import Change

pytestmark = pytest.mark.usefixtures("replays_once")

CALL = ("predict", "--gpu", "a100", "--heads", "32", "--seq-len", "1k", "--causal")
ASKED: dict[str, Any] = {"gpu": "a100", "heads": 32, "seq_len": 1024, "causal": True}


def written(path: Path, *more: str) -> str:
    """A file of earlier predictions."""
    assert main([*CALL, *more, "--format", "json", "-o", str(path)]) == 0
    return str(path)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("base") / "base.json", "--kernel", "fa2")


def told(capsys: pytest.CaptureFixture[str], code: int, *more: str) -> dict[str, Any]:
    """The JSON of a command that ends with `code`."""
    assert main([*CALL, *more, "--format", "json"]) == code
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_the_same_call_has_not_moved(base: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = told(
        capsys,
        0,
        "--kernel",
        "fa2",
        "--against",
        base,
        "--fail-above",
        "hbm=0,l2=0%",
        "--fail-above",
        "time=0",
    )
    assert data["against"]["holds"]
    (difference,) = data["against"]["differences"]
    assert [(c["change"], c["before"] == c["now"]) for c in difference["levels"]] == [
        (0.0, True)
    ] * 3
    assert (
        difference["parts"]
        == difference["fields"]
        == difference["reasons"]
        == difference["new_notes"]
        == []
    )
    assert {"predictions": data["predictions"]}.items() <= json.loads(
        Path(base).read_text(encoding="utf-8")
    ).items()


def test_another_tile_is_told_by_level_and_tensor_with_its_reason(
    base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--kernel", "fa2", "--tile", "64x64", "--against", base)
    assert told(capsys, 0, *more)["against"]["holds"], "no limit, no failure"
    (difference,) = told(capsys, 1, *more, "--fail-above", "l2=1%")["against"]["differences"]
    levels = {c["level"]: c for c in difference["levels"]}
    # causal, 8 query blocks of 128 rows: 2 + 4 + ... + 16 = 72 key blocks of 64; 16 of 64 rows: 1 + ... + 16 = 136
    bytes_of_block = 32 * 64 * 128 * 2
    keys = next(c for c in difference["parts"] if (c["level"], c["tensor"]) == ("l2", "K"))
    assert (keys["before"], keys["now"]) == (72 * bytes_of_block, 136 * bytes_of_block)
    assert (keys["launch"], keys["direction"], keys["change"]) == (
        "main",
        "read",
        pytest.approx(136 / 72 - 1),
    )
    assert (levels["l2"]["holds"], levels["hbm"]["limit"]) == (False, None)
    assert {"field": "tile", "before": "128x64", "now": "64x64"} in difference["fields"]
    assert any("64x64" in reason and "128x64" in reason for reason in difference["reasons"])
    assert any(reason.startswith("Spilled registers: 0 B") for reason in difference["reasons"])
    differences = [(c["level"], abs(c["now"] - c["before"])) for c in difference["parts"]]
    assert differences == sorted(differences, key=lambda part: (part[0], -part[1])), (
        "one launch: its time is the call's"
    )
    assert {level for level, _ in differences} == {"hbm", "l2"}


def test_parts_add_up_to_the_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = written(tmp_path / "b.json", "--kernel", "flash", "--pass", "fwd+bwd")
    data = told(capsys, 0, "--kernel", "fa2", "--pass", "fwd+bwd", "--against", base)
    (difference,) = data["against"]["differences"]
    for c in difference["levels"]:
        parts = [part for part in difference["parts"] if part["level"] == c["level"]]
        assert sum(p["now"] - p["before"] for p in parts) == pytest.approx(c["now"] - c["before"])
        if c["level"] != "time":
            assert c["now"] == sum(data["predictions"][0]["totals"][c["level"]].values())


def test_less_never_fails_and_that_is_said(base: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--kernel", "flash", "--against", base, "--fail-above", "l2=0")
    assert main([*CALL, *more]) == 0
    captured = capsys.readouterr()
    assert "within +0 %, less never fails" in captured.out
    assert "Within the limits." in captured.out
    assert captured.err == ""


def test_a_pass_that_leaves_spills_out_says_so(
    base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--kernel", "fa2", "--tile", "128x128", "--against", base, "--fail-above", "l2=0")
    data = told(capsys, 0, *more)
    assert "fa2 would spill registers, at a cost that is in no number here." in data["answer"]
    assert any(
        "registers a thread" in note for note in data["against"]["differences"][0]["new_notes"]
    )


def test_what_fails_is_told_on_standard_error(
    base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                *CALL,
                "--kernel",
                "fa2",
                "--tile",
                "64x64",
                "--against",
                base,
                "--fail-above",
                "l2=1%,hbm=99%",
            ]
        )
        == 1
    )
    captured = capsys.readouterr()
    assert captured.err.startswith("iosim: --fail-above: l2 of fa2 on a100-sxm-80gb in fp16 is ")
    assert captured.err.count("\n") == 1
    assert "hbm of" not in captured.err


@pytest.mark.parametrize(
    ("before", "now", "limit", "holds"),
    [
        (100, 105, 0.05, True),
        (100, 106, 0.05, False),
        (100, 0, 0.0, True),
        (0, 1, 9.0, False),
        (0, 0, 0.0, True),
    ],
)
def test_limits(before: int, now: int, limit: float, holds: bool) -> None:
    change = Change("hbm", "", "", "", before, now, limit)
    assert change.holds is holds
    assert (change.share is None) is (before == 0)
    assert change.verdict.startswith("within" if holds else "above")


def test_the_last_digits_of_a_time_are_no_change() -> None:
    assert Change("time", "", "", "", 1e-3, 1e-3 * (1 + 1e-12), 0.0).more == 0
    assert Change("l2", "", "", "", 10**12, 10**12 + 1, 0.0).more == 1


def test_of_two_limits_on_a_level_the_lower_one_holds(
    base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told(
        capsys,
        1,
        "--kernel",
        "fa2",
        "--tile",
        "64x64",
        "--against",
        base,
        "--fail-above",
        "l2=1%,l2=900%",
    )


def test_a_kernel_file_against_its_earlier_self(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.toml"
    assert main(["kernels", "new", "--from", "flash", "--name", "mine", "--out", str(mine)]) == 0
    base = written(tmp_path / "base.json", "--kernel", str(mine))
    text = mine.read_text(encoding="utf-8")
    assert "writes_lse = true" in text
    mine.write_text(text.replace("writes_lse = true", "writes_lse = false"), encoding="utf-8")
    capsys.readouterr()
    report = told(capsys, 0, "--kernel", str(mine), "--against", base, "--fail-above", "hbm=0")[
        "against"
    ]
    (difference,) = report["differences"]
    assert {"field": "writes_lse", "before": True, "now": False} in difference["fields"]
    assert [(c["level"], c["tensor"]) for c in difference["parts"]] == [("l2", "LSE")], (
        "it stays in the L2"
    )


def test_where_no_field_differs_the_sentence_says_so(base: str) -> None:
    earlier = json.loads(Path(base).read_text(encoding="utf-8"))["predictions"][0]
    p = iosim.predict(kernel="fa2", **ASKED)
    assert against.Difference(earlier | {"time_s": 1.0}, earlier, p, {}).reasons == (
        against.UNSAID,
    )
    assert against.Difference(earlier, earlier, p, {}).reasons == ()


def test_more_hbm_reads_have_the_predictions_own_reason(tmp_path: Path) -> None:
    long: dict[str, Any] = {
        "gpu": "h200",
        "heads": 8,
        "seq_len": "32k",
        "causal": True,
        "kernel": "cutlass",
    }
    before = iosim.predict(**long)
    (difference,) = iosim.predict(**long, tile="64x64", against=before).differences
    changed, reads, why, bound = difference.reasons
    assert changed == "Changed: tile 64x64 (before 64x128)"
    compulsory = 3 * 8 * 32768 * 128 * 2  # Q, K and V in fp16
    assert before.hbm.read < 1.005 * compulsory < 1.1 * compulsory < difference.prediction.hbm.read
    times = difference.prediction.hbm.read / compulsory
    assert reads == f"HBM reads are {times:.2f} times the compulsory bytes, before 1"
    assert "the L2 keeps" in why
    assert bound == "The time is bound by latency, before by smem"


def test_reads_that_stay_the_compulsory_ones_need_no_reason() -> None:
    """1.01 times against 1: why the L2 serves the rest is no reason of the difference."""
    call: dict[str, Any] = {"gpu": "h100", "heads": 32, "seq_len": 2048}
    (difference,) = iosim.predict(
        **call, kernel="flash", against=iosim.predict(**call, kernel="fa3")
    ).differences
    assert any((c.level, c.direction) == ("hbm", "read") for c in difference.parts)
    assert not any("HBM" in reason or "L2 serves" in reason for reason in difference.reasons)


def test_kernels_are_held_against_those_of_their_name_else_the_only_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = written(tmp_path / "two.json", "--kernel", "flash,fa2")
    report = told(capsys, 0, "--kernel", "fa2", "--against", two)["against"]
    assert [d["parts"] for d in report["differences"]] == [[]]
    assert report["left_out"] == ["flash on a100-sxm-80gb"]
    report = told(capsys, 0, "--kernel", "fa2,cutlass", "--against", two)["against"]
    assert [(d["kernel"], bool(d["parts"])) for d in report["differences"]] == [
        ("fa2", False),
        ("cutlass", True),
    ]
    assert {"field": "kernel", "before": "flash", "now": "cutlass"} in report["differences"][1][
        "fields"
    ]
    assert main([*CALL, "--kernel", "fa2,cutlass", "--against", two]) == 0
    assert "1 of 2 predictions moved" in capsys.readouterr().out
    refused(
        capsys,
        [*CALL, "--kernel", "cutlass", "--against", two],
        "--against",
        "two.json",
        "flash, fa2",
        "cutlass",
    )


def test_a_model_is_held_against_itself_layer_by_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [
        "predict",
        "--model",
        "gemma-3-4b",
        "--layers",
        "6",
        "--gpu",
        "h100",
        "--seq-len",
        "2k",
        "--format",
        "json",
    ]
    base = tmp_path / "model.json"
    assert main([*line, "-o", str(base)]) == 0
    assert main([*line, "--kernel", "fa2", "--against", str(base), "--fail-above", "time=1%"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [d["layer"] for d in data["against"]["differences"]] == [
        p["layer"] for p in data["predictions"]
    ]
    assert len(data["against"]["differences"]) == 2
    assert data["models"]


def test_csv_has_a_row_a_level_and_a_part(base: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CALL, "--kernel", "flash", "--against", base, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["level"] for row in rows[:3]] == ["hbm", "l2", "time"]
    assert {row["tensor"] for row in rows} >= {"", "spill"}


def test_python_takes_the_file_or_a_prediction(base: str) -> None:
    d = iosim.predict(kernel="fa2", tile="64x64", against=base, fail_above=["l2=1%"], **ASKED)
    assert not d.holds
    assert "+1 %" in d.exceeded[0]
    other = iosim.predict(
        kernel="fa2", tile="64x64", against=iosim.predict(kernel="fa2", **ASKED), **ASKED
    )
    assert other.holds
    assert other.differences[0].parts == d.differences[0].parts
    assert str(other).startswith("Against the earlier prediction, fa2 on a100-sxm-80gb in fp16: ")
    assert d.to_pandas().shape == (3 + len(d.differences[0].parts), 9)
    with pytest.raises(iosim.InputError, match=r"^fail_above hbm=5% needs against"):
        iosim.predict(kernel="fa2", fail_above="hbm=5%", **ASKED)


Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda d: d.update(schema=2), ("schema 2", "1")),
        (lambda d: d.pop("schema"), ("schema None", "1")),
        (lambda d: d.pop("predictions"), ("predictions",)),
        (lambda d: d.update(predictions=[]), ("predictions",)),
        (lambda d: d["predictions"][0].pop("traffic"), ("predictions[0].traffic",)),
        (
            lambda d: d["predictions"][0]["traffic"][1].update(bytes=-1),
            ("predictions[0].traffic[1].bytes", "-1"),
        ),
        (
            lambda d: d["predictions"][0].update(time_s=float("nan")),
            ("predictions[0].time_s", "nan"),
        ),
        (lambda d: d["predictions"][0]["problem"].update(seq_q=512), ("seq_q 512", "1024")),
        (
            lambda d: d["predictions"][0].update(profile="h100-sxm"),
            ("gpu h100-sxm", "a100-sxm-80gb"),
        ),
        (lambda d: d["predictions"][0].update(l2_start="warm"), ("l2 warm", "cold")),
    ],
)
def test_a_file_of_something_else_is_refused(
    edit: Edit,
    named: tuple[str, ...],
    base: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = json.loads(Path(base).read_text(encoding="utf-8"))
    edit(data)
    other = tmp_path / "other.json"
    other.write_text(json.dumps(data), encoding="utf-8")
    refused(
        capsys,
        [*CALL, "--kernel", "fa2", "--against", str(other)],
        "--against",
        "other.json",
        *named,
    )


@pytest.mark.parametrize(
    "text", ["hbm", "hbm=", "hbm=x", "smem=5%", "hbm:max=5%", "hbm=-5%", "=5%", ""]
)
def test_a_limit_of_another_form_is_refused(
    text: str, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(
        capsys,
        [*CALL, "--kernel", "fa2", "--against", base, "--fail-above", text],
        "--fail-above",
        "hbm",
    )


def test_bounds_have_no_hbm_bytes_to_hold(base: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = [*CALL, "--kernel", "fa2", "--against", base, "--method", "bounds"]
    assert main([*line, "--fail-above", "l2=1%"]) == 0
    assert "not known" in capsys.readouterr().out
    refused(capsys, [*line, "--fail-above", "hbm=1%"], "--fail-above", "hbm", "--method")
    refused(capsys, [*CALL, "--fail-above", "hbm=1%"], "--fail-above", "--against")
    refused(capsys, [*CALL, "--against", "none.json"], "--against", "none.json")
    refused(capsys, [*CALL, "--against", "."], "--against")


def test_a_reason_says_what_the_time_was_bound_by_and_how_bytes_were_found(
    base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (same,) = told(capsys, 0, "--kernel", "fa2", "--against", base)["against"]["differences"]
    assert same["reasons"] == [], "what is as before is no reason"
    (other,) = told(capsys, 0, "--kernel", "fa2", "--against", base, "--method", "capacity")[
        "against"
    ]["differences"]
    assert "HBM bytes are found by capacity, before by replay" in other["reasons"]
    earlier = json.loads(Path(base).read_text(encoding="utf-8"))
    earlier["predictions"][0]["bound_by"] = "hbm"
    changed = Path(base).with_name("bound.json")
    changed.write_text(json.dumps(earlier), encoding="utf-8")
    (bound,) = told(capsys, 0, "--kernel", "fa2", "--against", str(changed))["against"][
        "differences"
    ]
    now = json.loads(Path(base).read_text(encoding="utf-8"))["predictions"][0]["bound_by"]
    assert bound["reasons"] == [f"The time is bound by {now}, before by hbm"]


def entry(read: int, compulsory: int = 100, spilled: int = 0, **more: Any) -> dict[str, Any]:
    """A prediction as a file has it: K's reads from HBM, beside its compulsory bytes, and spilled registers."""
    names = ("launch", "level", "tensor", "direction", "bytes")
    traffic_rows = [("main", "hbm", "K", "read", read)]
    traffic_rows += [("main", "l2", SPILL, "write", spilled)] if spilled else []
    return {
        "method": "simulation",
        "bound_by": "hbm",
        "kernel": {"name": "fa2", "block_q": 128, "block_k": 64},
        "traffic": [dict(zip(names, traffic_row, strict=True)) for traffic_row in traffic_rows],
        "hbm_bounds": {"compulsory": {"read": compulsory}},
        "time": [{"launches": [{"name": "main", "time_s": 1.0}]}],
        "time_s": 1.0,
        "notes": [],
        **more,
    }


READS = "HBM reads are {} times the compulsory bytes, before {}"


@pytest.mark.parametrize(
    ("was", "now", "reasons"),
    [
        # Of 100 compulsory bytes: what is read again now, with the reason of today's prediction
        (entry(100), entry(150), [READS.format("1.5", "1"), "why"]),
        (entry(150), entry(200), [READS.format("2", "1.5"), "why"]),
        (
            entry(150),
            entry(100),
            [READS.format("1", "1.5")],
        ),  # less now: today's reason explains nothing
        (entry(200), entry(150), [READS.format("1.5", "2")]),
        (entry(100), entry(104), [against.UNSAID]),  # both "once": 1.05 at most
        (entry(105), entry(100), [against.UNSAID]),
        (entry(1500, 1000), entry(1501, 1000), [against.UNSAID]),  # 1.5 both, as people read them
        (entry(150), entry(150), []),
        (
            entry(5, 0),
            entry(7, 0),
            [READS.format("7", "5"), "why"],
        ),  # no compulsory byte: beside one
        (entry(100), entry(100, bound_by="l2"), ["The time is bound by l2, before by hbm"]),
        (entry(100), entry(100, spilled=3_000), ["Spilled registers: 3 kB stored, before 0 B"]),
        (entry(100, spilled=3_000), entry(100, spilled=3_000), []),
        # What one side does not know is not compared.
        (
            entry(100, method="bounds"),
            entry(200),
            ["HBM bytes are found by simulation, before by bounds"],
        ),
        (
            entry(100),
            entry(100, method="bounds"),
            ["HBM bytes are found by bounds, before by simulation"],
        ),
        (
            entry(100),
            entry(100, kernel={"name": "fa3", "block_q": 64, "block_k": 64}),
            ["Changed: kernel fa3 (before fa2), tile 64x64 (before 128x64)"],
        ),
    ],
)
def test_reasons_of_a_difference(
    monkeypatch: pytest.MonkeyPatch, was: dict[str, Any], now: dict[str, Any], reasons: list[str]
) -> None:
    monkeypatch.setattr(against, "why", lambda prediction: "why")
    difference = against.Difference(was, now, cast("Any", None), {})
    assert list(difference.reasons) == reasons
