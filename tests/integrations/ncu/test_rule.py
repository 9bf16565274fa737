"""`iosim ncu-rule`: the rule on a stand-in of the profiler's interface, its answers, and recorded reports read by the
profiler's own module. `data/ncu_h200.toml` says what was recorded."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import nv_rules
import pytest
from scripts import ROOT

from iosim.base.errors import InputError
from iosim.commands import trust
from iosim.commands.cli import main
from iosim.evidence.columns import METRICS as COLUMNS
from iosim.evidence.cuda.ncu import Profiled, parse_raw, profiled_of, unit_scale
from iosim.evidence.validate.one_launch import answer_launch
from iosim.evidence.validate.profile_rows import metrics, read_profile
from iosim.evidence.validate.recognise import Given
from iosim.hardware.profile import load_profile
from iosim.integrations.ncu import report, rule
from iosim.integrations.ncu.install import FILES, HERE, contents

DATA = ROOT / "tests" / "data"
LAUNCHES: list[dict[str, Any]] = json.loads((DATA / "ncu_h200.json").read_text())
LONG = LAUNCHES[1]
UNTOLD = LAUNCHES[2]
OWN = LAUNCHES[3]
CSV = DATA / "ncu_h200.csv"


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    """The installed rule as the profiler loads it, NvRules in place."""
    assert main(["ncu-rule", "--install", str(folder), *words]) == 0
    monkeypatch.setitem(sys.modules, "NvRules", nv_rules)
    spec = importlib.util.spec_from_file_location("iosim_attention", folder / FILES["rule.py"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page_of(module: Any, facts: dict[str, Any]) -> nv_rules.Page:
    context = nv_rules.Context(facts)
    module.apply(context)
    return context.page


@pytest.mark.slow
def test_a_launch_on_the_profilers_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way: the rule reads the launch, asks iosim in another process, and shows what it says."""
    monkeypatch.setenv(
        "PYTHONHOME", "/nowhere"
    )  # of the profiler's own Python, which must not reach another
    page = page_of(installed(tmp_path / "rules", monkeypatch), LONG)
    (kind, text, title), (advised, advice, _) = page.messages
    assert kind == nv_rules.IFrontend.MsgType_MSG_OK
    assert title == rule.TITLE
    assert "8 heads, 16384 x 16384 tokens" in text
    assert advised == nv_rules.IFrontend.MsgType_MSG_OPTIMIZATION
    assert "HBM" in advice
    counted, tensors = page.tables
    assert counted[1] == ["", "predicted", "counted", "difference", "of counted"]
    assert [row[0] for row in counted[2]] == [
        "read from HBM",
        "written to HBM",
        "L2 to SMs",
        "SMs to L2",
        "time",
    ]
    assert {"Q", "K", "V", "O", "spill"} <= {row[0] for row in tensors[2]}
    assert [(name, value) for _, name, value, _, _ in page.focus] == [
        (name, value) for name, (value, unit) in LONG["metrics"].items() if unit == "byte"
    ]
    ((_, scale, percent),) = page.speedups
    assert scale == nv_rules.IFrontend.SpeedupType_GLOBAL
    assert 0 < percent < 50
    assert abs(page.handed_on["dram__bytes_read.sum"] / 133.2e6 - 1) < 0.05


def test_where_nobody_answers_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = installed(tmp_path, monkeypatch)
    here = dict(module.INSTALLED)
    for settings, message in (
        ({"python": str(tmp_path / "gone")}, "is not there"),
        ({"python": shutil.which("false")}, "exit code 1"),
        ({"python": shutil.which("true")}, "JSONDecodeError"),
        ({"words": ["--gpu", "nosuch"]}, "iosim: "),
        ({"words": None}, "TypeError"),
    ):
        monkeypatch.setattr(module, "INSTALLED", {**here, **settings})
        ((kind, text, _),) = page_of(module, UNTOLD).messages
        assert kind == nv_rules.IFrontend.MsgType_MSG_WARNING
        assert text.startswith("No prediction: ")
        assert message in text
        assert "ncu-rule --install" in text


def test_kernels_that_are_not_known_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is asked: a program has thousands of them."""
    module = installed(tmp_path, monkeypatch)
    monkeypatch.setattr(module, "_run", None)
    page = page_of(module, {**LONG, "kernel": "ampere_bf16_s16816gemm"})
    assert page.messages == [(0, "No prediction: no catalog kernel has this name.", rule.TITLE)]
    assert not page.tables


def test_an_answer_that_takes_too_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = installed(tmp_path, monkeypatch)
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    with pytest.raises(TimeoutError, match=r"no answer in 0\.1 s"):
        module._run(["/bin/sleep", "5"], {}, str(tmp_path / "out"), str(tmp_path / "errors"))


def test_the_same_without_posix_spawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where the profiler's pages are read, too."""
    monkeypatch.delattr(os, "posix_spawn")
    out, errors = tmp_path / "out", tmp_path / "errors"
    assert (
        rule._run(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"], {}, str(out), str(errors))
        == 3
    )
    assert (out.read_text(), errors.read_text()) == ("out\n", "err\n")


def test_the_rule_and_its_section_ask_for_the_counters_that_are_compared() -> None:
    section = (HERE / "attention.section").read_text()
    counters = {*metrics().split(","), *(COLUMNS[name][0] for name in ("registers", "smem_bytes"))}
    assert set(rule.METRICS) == counters
    assert all(f'Name: "{name}"' in section for name in counters)
    assert f'Identifier: "{rule.get_section_identifier()}"' in section
    assert rule.get_identifier() != rule.get_section_identifier()
    assert rule.get_name()
    assert rule.get_description()


def test_what_is_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--gpu",
        "h200",
        "--seq-len",
        "1000,4k",
        "--head-dim",
        "64,128",
        "--no-causal",
        "--tile",
        "128x64",
        "--heavy-first",
        "--scheduler",
        "dynamic",
    ]
    assert main(["ncu-rule", "--install", str(tmp_path / "new"), *words]) == 0
    assert f"--section {rule.get_section_identifier()} " in capsys.readouterr().out
    text = (tmp_path / "new" / "iosim_attention.py").read_text()
    assert "\nimport NvRules\n" in text
    assert json.dumps(words)[1:-1].split(", ") == sorted(
        json.dumps(words)[1:-1].split(", "), key=text.index
    )
    assert "from __future__" not in text
    assert text.isascii()
    assert contents([], []).keys() == set(FILES.values())


def test_places_and_words_that_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "unit.json").write_text(
        json.dumps({**LONG, "metrics": {"dram__bytes_read.sum": [1, "Mbit"]}})
    )
    (tmp_path / "other.json").write_text(json.dumps({**LONG, "device": "Intel Arc"}))
    (tmp_path / "nameless.json").write_text(json.dumps({**LONG, "device": ""}))
    (tmp_path / "grid.json").write_text(json.dumps({**LONG, "grid": None}))
    for argv, message in (
        (["--install", str(tmp_path / "file")], "--install"),
        (["--install", str(tmp_path / "a" / "b")], "--install"),
        (["--install", str(tmp_path), "--gpu", "nosuch"], "nosuch"),
        (["--install", str(tmp_path), "--seq-len", "many"], "--seq-len"),
        (["--launch", str(tmp_path / "absent.json")], "cannot be read"),
        (["--launch", str(tmp_path / "list.json")], "no JSON object"),
        (["--launch", str(tmp_path / "bad.json")], "no JSON"),
        (["--launch", str(tmp_path / "unit.json")], "unit 'Mbit' is not known"),
        (["--launch", str(tmp_path / "other.json")], "Intel Arc"),
        (["--launch", str(tmp_path / "nameless.json")], "--gpu"),
        (["--launch", str(tmp_path / "grid.json")], "lacks what is needed"),
        ([], "--install"),
    ):
        assert main(["ncu-rule", *argv]) == 2, argv
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert message in captured.err


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No changes are tried, which takes longest."""
    monkeypatch.setattr("iosim.evidence.validate.one_launch._explained", lambda *call: (None, ""))


def test_what_ranges_say_goes_before_what_is_given(untried: None) -> None:
    launch = profiled_of(LONG)
    answer = answer_launch(launch, Given(seqs=(4096,), heads=99), load_profile("h200"), trust.told)
    assert answer.prediction is not None  # 16k and 8 heads stand in the range
    assert answer.prediction.problem.seq_q == 16384
    odd = Profiled(
        launch.kernel, launch.grid, launch.block, launch.metrics, ("x", "iosim --seq-lenn 4k")
    )
    assert "NVTX range" in answer_launch(odd, Given(), load_profile("h200"), trust.told).reason


def test_launches_that_are_not_known_say_why() -> None:
    other = Profiled("ampere_gemm", (1, 1, 1), (1, 1, 1), {}, ())
    for launch, message in (
        (profiled_of(UNTOLD), "needs --seq-len"),
        (other, "no catalog kernel has this name"),
        (profiled_of({**LONG, "metrics": {}}), "none of the counters"),
    ):
        answer = answer_launch(launch, Given(), load_profile("h200"), trust.told)
        assert answer.status == "unknown"
        assert message in answer.reason
        assert answer.answer() == f"No prediction: {answer.reason}."
        assert (answer.advice, answer.speedup_percent, answer.tables()[0]["rows"]) == ("", 0.0, [])


@pytest.mark.parametrize("factor", [0.9, 1.5, 200.0])
def test_a_difference_is_laid_where_there_is_room(factor: float, untried: None) -> None:
    """With what is read again where less was read; with what the L2 served where more was; the rest with nothing."""
    read, unit = LONG["metrics"]["dram__bytes_read.sum"]
    facts = {**LONG, "metrics": {**LONG["metrics"], "dram__bytes_read.sum": [read * factor, unit]}}
    answer = answer_launch(profiled_of(facts), Given(), load_profile("h200"), trust.told)
    off = next(q["unpredicted"] for q in answer.quantities() if q["quantity"] == "hbm_read")
    laid = {x.tensor: x.laid for x in answer.parts if x.direction == "read"}
    assert answer.status == "differs"
    assert laid["Q"] == 0
    for x in answer.parts:
        if x.direction == "read":
            assert x.once <= x.predicted + x.laid <= max(x.l2, x.predicted) or not x.once
    if factor < 100:
        assert abs(sum(laid.values()) - off) <= 3
        assert "K (" in answer.answer()
    else:
        assert sum(laid.values()) < off
        assert "belong to no tensor" in answer.answer()


def test_a_launch_that_follows_others_needs_all_said(untried: None) -> None:
    kernel = "void pytorch_flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>(Params)"
    launch = Profiled(kernel, (64, 1, 1), (128, 1, 1), {"dram__bytes_read.sum": 5e6}, ())
    answer = answer_launch(launch, Given(), load_profile("h200"), trust.told)
    assert "needs --batch, --heads" in answer.reason
    told_options = Given(1, 8, None, (1000,), None, (64,), "bf16", False)
    known = answer_launch(launch, told_options, load_profile("h200"), trust.told)
    assert known.row is not None or "combine" in known.reason


def test_a_raw_page_tells_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    """The columns of `ncu --nvtx`, as the profiler writes them, one range within another included."""
    launches, notes = parse_raw(CSV.read_text())
    assert notes == []
    assert [bool(launch.ranges) for launch in launches] == [True, True, False, True]
    rows = read_profile(CSV, Given(), trust.told)
    assert [(r.implementation, r.facts["seq_q"]) for r in rows.rows] == [
        ("pytorch_flash", "4096"),
        ("pytorch_flash", "16384"),
        ("flash_fwd_sm90", "16384"),
    ]
    assert [s.reason for s in rows.unmatched] == ["needs --seq-len"]
    assert main(["validate", "--ncu", str(CSV), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    errors = {(r["implementation"], r["quantity"]): r["error"] for r in data["rows"]}
    assert errors["flash_fwd_sm90", "hbm_read"] < 0.05
    assert errors["flash_fwd_sm90", "l2_read"] < 1e-4


@pytest.fixture
def report_there() -> Path:
    """A report that was made under the rule."""
    pytest.importorskip(report.MODULE)
    return DATA / "ncu_h200.ncu-rep"


def test_a_report_read_by_the_profilers_own_module(report_there: Path, tmp_path: Path) -> None:
    rows_read = report.launches(report_there)
    assert rows_read is not None
    ((facts),) = rows_read
    assert {name: facts[name] for name in ("kernel", "grid", "block", "device", "ranges")} == {
        name: OWN[name] for name in ("kernel", "grid", "block", "device", "ranges")
    }
    assert facts["metrics"]["dram__bytes_read.sum"] == [102184960, "byte"]
    assert {name: unit for name, (_, unit) in facts["metrics"].items()} == {
        name: unit for name, (_, unit) in OWN["metrics"].items()
    }
    rows = read_profile(report_there, Given(), trust.told, report.launches).rows
    assert [(r.implementation, r.measured["hbm_read"]) for r in rows] == [
        ("flash_fwd_sm90", 102184960)
    ]
    cut = tmp_path / "cut.ncu-rep"
    cut.write_bytes(report_there.read_bytes()[:40_000])
    with pytest.raises(InputError, match="cannot read"):
        report.launches(cut)


def test_what_the_rule_left_in_the_profilers_own_report(report_there: Path) -> None:
    """Recorded by the profiler itself: the messages, tables and metrics that the stand-in gets today."""
    module = report.module()
    action = module.load_report(str(report_there)).range_by_idx(0).action_by_idx(0)
    results, advice = action.rule_results_as_dicts()
    assert results["rule_identifier"] == rule.get_identifier()
    assert results["section_identifier"] == rule.get_section_identifier()
    assert results["rule_message"]["title"] == rule.TITLE
    assert "HBM" in advice["rule_message"]["message"]
    (facts,) = report.launches(report_there) or ()
    answer = answer_launch(profiled_of(facts), Given(), load_profile("h200"), trust.told)
    assert [table["headers"] for table in results["result_tables"]] == [
        table["header"] for table in answer.tables()
    ]
    data = results["result_tables"][0]["data"]
    assert data[0] == [row[0] for row in answer.tables()[0]["rows"]]
    assert data[2] == [row[2] for row in answer.tables()[0]["rows"]]  # what was counted
    assert {m["name"]: m["value"] for m in results["focus_metrics"]} == {
        m["name"]: m["counted"] for m in answer.to_dict()["metrics"]
    }


def test_the_page_that_the_profiler_printed() -> None:
    """Of four launches three are known; the page of each has the rule's message, and the others why there is none."""
    page = " ".join((DATA / "ncu_h200_page.txt").read_text().split())
    assert page.count(f"Section: {rule.get_name()}") == len(LAUNCHES)
    assert page.count("read from HBM: ") == 3
    assert page.count("No prediction: needs --seq-len.") == 1
    assert "OPT Est. Speedup: 10.43%" in page


def test_without_the_module_the_profiler_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MODULE", "no_such_module")
    monkeypatch.setattr(report, "BESIDE", tmp_path)
    assert report.launches(tmp_path / "any.ncu-rep") is None
    assert report.module() is None
    path = tmp_path / "user.ncu-rep"
    path.write_bytes(b"NVR")
    monkeypatch.setattr(
        "iosim.evidence.validate.profile_rows.import_report", lambda path: CSV.read_text()
    )
    assert len(read_profile(path, Given(), trust.told, report.launches).rows) == 3

    def broken(path: Path) -> None:
        raise InputError("ncu_report cannot read it")

    assert len(read_profile(path, Given(), trust.told, broken).rows) == 3


@pytest.mark.parametrize(
    ("unit", "scale"),
    [
        ("ns", 1e-9),
        ("nsecond", 1e-9),
        ("cycle/nsecond", 1e9),
        ("Gbyte/second", 1e9),
        ("Kbyte/block", 1e3),
        ("register/thread", 1),
        ("byte/ms", 1e3),
    ],
)
def test_units_of_rates(unit: str, scale: float) -> None:
    assert unit_scale(unit) == pytest.approx(scale)


@pytest.mark.parametrize(
    ("grid", "settings", "wanted"),
    [
        (132, {}, "dynamic"),
        (1024, {}, "one_tile"),
        (132, {"scheduler": "persistent"}, "static"),
        (1024, {"scheduler": "static"}, "one_tile"),
    ],
)
def test_the_schedule_of_flash_fwd_sm90(grid: int, settings: dict[str, str], wanted: str) -> None:
    from iosim.evidence.validate.recognise import recognise

    options = trust.told(" ".join(OWN["ranges"][1].split()[1:]).replace("--scheduler dynamic", ""))
    options = options.under(Given(settings=settings))
    recognised = recognise("flash_fwd_sm90", (grid, 1, 1), options)
    assert (
        recognised.facts["schedule"],
        recognised.facts["consumers"],
        recognised.facts["blocks"],
    ) == (
        wanted,
        "2",
        "heavy_first",
    )


def test_a_launch_of_a_file_is_shown_as_on_the_profilers_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["ncu-rule", "--launch", str(DATA / "ncu_launch.json")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("fa2 on h200-sxm, batch 1, 8 heads, 16384 x 16384 tokens")
    assert re.findall(r"^(?:Predicted and Counted|HBM by Tensor|'.*' helps most)", out, re.M)
    assert "read from HBM" in out


def test_standard_input_is_taken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(UNTOLD)))
    assert main(["ncu-rule", "--launch", "-"]) == 0
    assert capsys.readouterr().out == "No prediction: needs --seq-len.\n"
    assert trust.MAX_CHARACTERS > 1 << 16


def test_a_launch_whose_bytes_were_not_counted_is_predicted_all_the_same(untried: None) -> None:
    """A profile without memory metrics: nothing to compare with, and no number in the JSON in place of a count."""
    metrics = {name: value for name, value in LONG["metrics"].items() if value[1] != "byte"}
    rule_answer = answer_launch(
        profiled_of({**LONG, "metrics": metrics}), Given(), load_profile("h200"), trust.told
    ).to_dict()
    assert rule_answer["status"] == "as_predicted"
    assert rule_answer["problem"]["seq_q"] == 16384
    assert {q["quantity"] for q in rule_answer["quantities"]} <= {"time"}
    assert rule_answer["metrics"] == []
    assert all(row["predicted"] > 0 for row in rule_answer["tensors"] if row["tensor"] in "QKVO")
    counted = answer_launch(profiled_of(LONG), Given(), load_profile("h200"), trust.told).to_dict()
    byte_metrics = [name for name, (_, unit) in LONG["metrics"].items() if unit == "byte"]
    assert [(m["name"], m["counted"]) for m in counted["metrics"]] == [
        (name, LONG["metrics"][name][0]) for name in byte_metrics
    ]
