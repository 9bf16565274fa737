"""The validation report: targets by row, groups of misses with their reasons, and both files of `--report`."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path

import pytest
from refusals import assert_names

from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.evidence.validate import Comparison, Residual, compare, read, report
from iosim.evidence.validate.reasons import Group, groups, reason_of
from iosim.evidence.validate.rows import QUANTITIES, own_file
from iosim.evidence.validate.summary import TARGETS, clean, misses
from iosim.hardware.profile import load_profile
from iosim.show.html import html, unpacked
from iosim.show.page import markdown

CALLS = ("22", "104", "121", "236", "245")
"""Forward at 4,096 and at 4,097 tokens, a split one, the naive chain, the minimal kernel."""


@pytest.fixture(scope="module")
def some_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few calls of the recorded table, most of them cheap to replay."""
    path = tmp_path_factory.mktemp("report") / "some.csv"
    with own_file().open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["call"] in CALLS]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def some(some_file: Path) -> Comparison:
    return compare(read(some_file), load_profile("h200"))


def altered(r: Residual, **changes: object) -> Residual:
    return Residual(**{**vars(r), **changes})  # type: ignore[arg-type]


# Targets


@pytest.mark.parametrize(
    ("quantity", "measured", "predicted", "good"),
    [
        ("l2_read", 10_000_000, 10_009_999, True),  # 0.1 % is 10,000
        ("l2_read", 10_000_000, 10_010_001, False),
        ("l2_write", 5_000, 5_999, True),  # or 1 kB
        ("l2_write", 5_000, 6_001, False),
        ("hbm_read", 100_000_000, 109_999_999, True),
        ("hbm_read", 100_000_000, 89_999_999, False),
        ("hbm_read", 500_000, 600_000, True),  # or 100 kB
        ("hbm_write", 10_000_000, 12_000_000, True),  # 5 % or 2 MB
        ("hbm_write", 10_000_000, 12_000_001, False),
        ("hbm_write", 100_000_000, 104_999_999, True),
        ("time", 1e-3, 2e-3, True),  # only the mean counts
    ],
)
def test_targets_of_a_row(
    some: Comparison, quantity: str, measured: int, predicted: int, good: bool
) -> None:
    row = altered(
        some.residuals[0], quantity=quantity, measured=measured, predicted=predicted, spills=False
    )
    assert TARGETS[quantity].row(row) is good
    assert misses([row]) == ([] if good else [row])
    assert misses([altered(row, spills=True)]) == []


def test_targets_of_the_whole(some: Comparison) -> None:
    def of(quantity: str, *errors: float) -> tuple[bool, str]:
        base = altered(some.residuals[0], quantity=quantity, spills=False)
        rows = [altered(base, measured=10**9, predicted=round(10**9 * (1 + e))) for e in errors]
        return TARGETS[quantity].reached(rows)

    assert set(TARGETS) == set(QUANTITIES)
    assert of("hbm_read", *[0.005] * 19, 0.09)[0]  # 95 % within 5 %
    assert not of("hbm_read", *[0.005] * 19, 0.11)[0]
    assert not of("hbm_read", *[0.011] * 20)[0]  # median above 1 %
    assert of("hbm_write", *[0.0] * 19, 0.5)[0]
    assert not of("hbm_write", *[0.0] * 18, 0.5, 0.5)[0]
    assert of("l2_read", 0.0009, 0.0) == (True, "100.0 % of rows within it")
    assert not of("l2_read", 0.0011, 0.0)[0]
    assert of("time", 0.0, 0.2)[0]
    assert of("time", 0.0, 0.21) == (False, "mean 10.5 %")


# Reasons


def test_groups_are_whole() -> None:
    names = [group.name for group in groups()]
    assert len(names) == len(set(names)) >= 8
    for group in groups():
        assert group.reason.endswith(".")
        assert group.command.startswith(("iosim ", "python "))
        assert "\n" not in group.reason + group.experiment + group.command


@pytest.mark.parametrize("group", groups(), ids=lambda group: group.name)
def test_commands_of_groups_run(group: Group, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(group.command)
    if words[:2] == ["iosim", "measure"]:
        assert main([*words[1:], "--dry-run", "--cc", "9.0"]) == 0
        assert re.search(r"^\d+ (calls?|chains?)", capsys.readouterr().out, flags=re.MULTILINE)


def test_every_miss_of_a_sample_has_its_group(some: Comparison) -> None:
    for r in misses(some.residuals):
        assert reason_of(r, groups()) is not None, (r.row.call, r.quantity)


@pytest.mark.parametrize(
    ("facts", "changes", "name"),
    [
        ({"order": "query", "direction": "ascending"}, {"regime": "wave-bound"}, "at-capacity"),
        ({"order": "head", "direction": "alternating"}, {"regime": "thrashing"}, "at-capacity"),
        ({"order": "query", "direction": "ascending"}, {"regime": "compulsory"}, None),
        ({}, {"regime": "thrashing", "quantity": "hbm_write"}, "at-capacity"),
        ({}, {"regime": "compulsory", "quantity": "hbm_write"}, "dirty-at-end"),
        ({}, {"quantity": "time"}, None),
    ],
)
def test_the_first_condition_that_holds_wins(
    some: Comparison, facts: dict[str, str], changes: dict[str, object], name: str | None
) -> None:
    base = next(
        r for r in some.residuals if r.row.implementation == "flash_fwd" and r.launch == "main"
    )
    row = vars(base.row) | {"facts": {**base.row.facts, **facts}}
    reason = reason_of(
        altered(base, **{"quantity": "hbm_read", "row": type(base.row)(**row), **changes}), groups()
    )
    assert (reason.name if reason else None) == name


GROUP = 'schema = 1\n[[group]]\nname = "a"\ntitle = "t"\nreason = "r"\nexperiment = "e"\ncommand = "c"\nisolated = true\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema = 2", "reasons.toml"),
        ('schema = 1\n[[group]]\nname = "a"', "quantities"),
        (GROUP + 'quantities = ["hbm_read"]\nwhen = { colour = "red" }', "colour"),
        (GROUP + 'quantities = ["speed"]\nwhen = {}', "speed"),
    ],
)
def test_a_wrong_file_of_reasons_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "reasons.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        groups(path)
    assert_names(str(caught.value), ["reasons.toml", message])


# The files


@pytest.fixture(scope="module")
def folder(some_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reports")
    assert main(["validate", "--measurements", str(some_file), "--report", str(path)]) == 0
    return path


def test_every_miss_is_listed_under_a_reason(some: Comparison) -> None:
    """Every byte half as much again: all rows of the sample miss."""
    wrong = tuple(
        altered(r, predicted=r.predicted + r.measured // 2 + 3_000_000)
        for r in some.residuals
        if r.quantity != "time" and not r.spills
    )
    comparison = Comparison(wrong, ())
    assert len(misses(wrong)) == len(wrong) > 20
    text = markdown(report.as_page(comparison))
    assert f"why {len(wrong)} rows miss their target" in text
    table = text.partition("every row that misses its target")[2]
    assert len(re.findall(r"^\| (HBM|SM<->L2|shared)", table, flags=re.MULTILINE)) == len(wrong)
    counted = re.findall(r"^- \*\*.*?(\d+) rows, ", text, flags=re.MULTILINE)
    assert sum(map(int, counted)) == len(wrong)
    assert html(report.as_page(comparison)).count("<li><b>") == len(counted)
    assert (
        report.OPEN in text
    )  # some of them, such as bytes of plain forward kernels, have no reason to miss


def test_the_page_draws_bands_and_fetches_nothing(folder: Path) -> None:
    page = (folder / "validation.html").read_text(encoding="utf-8")
    assert "<script src" not in page
    assert "default-src 'none'" in page
    data = unpacked(page)
    panel = data["panels"]["figure-own-hbm_read"]
    names = [series["name"] for series in panel["data"]]
    assert names[:5] == ["equal", "+5%", "-5%", "+10%", "-10%"]
    low = panel["data"][3]["x"]
    high = panel["data"][3]["y"]
    assert high == pytest.approx([1.1 * x for x in low])
    assert panel["layout"]["xaxis"]["type"] == panel["layout"]["yaxis"]["type"] == "log"
    assert any("measured" in text and "error" in text for text in panel["data"][-1]["text"])


def test_tables_are_by_level_and_regime(some: Comparison) -> None:
    tables = {s.heading: s.table for s in report.report_sections(some)}
    levels = tables["The project's own kernels: errors by level and regime"]
    assert levels is not None
    counted = sum(row[2] for row in levels.rows)
    assert counted == sum(r.error is not None for r in some.residuals)
    targets = tables["The project's own kernels: targets (kernels without spills)"]
    assert targets is not None
    assert sum(row[-1] for row in targets.rows) == len(misses(some.residuals))
    assert targets.rows[0][1] == sum(r.quantity == "hbm_read" for r in clean(some.residuals))


def test_the_same_rows_give_the_same_bytes(some: Comparison, folder: Path) -> None:
    assert markdown(report.as_page(some)) == (folder / "validation.md").read_text(encoding="utf-8")
    assert html(report.as_page(some)) == (folder / "validation.html").read_text(encoding="utf-8")


def test_a_place_that_is_no_directory(
    some_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["validate", "--measurements", str(some_file), "--report", str(tmp_path / "absent")]
    assert main(argv) == 2
    assert "is no directory" in capsys.readouterr().err


def test_the_reason_of_most_rows_stands_first(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = groups()[:2]
    missed = [few, many, many]
    monkeypatch.setattr(report, "reason_of", lambda row, among: row)
    monkeypatch.setattr(report, "_found", lambda rows: f"{len(rows)} rows")
    items = report._why("library", missed).items  # type: ignore[arg-type]
    assert [item.split("**")[1] for item in items] == [many.title, few.title]
