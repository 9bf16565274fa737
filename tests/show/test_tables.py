"""Tables and pages: what is written holds the values, is escaped, and knows nothing of who asked."""

from __future__ import annotations

import csv
import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosim import AttentionProblem, predict
from iosim.show import axes, terminal
from iosim.show.axes import alike, apart, layered
from iosim.show.html import group_columns, groups
from iosim.show.tables import COMMANDS, RIGHT, Cell, Column, Table, spread_out
from iosim.studies.compare import compare
from iosim.studies.tiles.pick import pick_tiles
from iosim.studies.training import Decoder, Setup, frontier, predict_training

COLUMNS = (
    Column("kernel", "kernel"),
    Column("hbm_bytes", "HBM", "bytes"),
    Column("time_s", "time", "seconds"),
)


TABLE = Table(COLUMNS, (("fa2", 2_500_000_000, 0.00125), ("naive|wide", 3 << 53, None)))


def test_text_is_aligned_with_numbers_to_the_right() -> None:
    lines = TABLE.text().splitlines()
    assert lines[0].index("HBM") + 3 == lines[1].index("2.5 GB") + 6  # both end in one column
    assert lines[1].startswith("fa2 ")
    assert lines[1].endswith("1.25 ms")
    assert lines[2].endswith(" -")  # not known


def test_a_column_without_a_title_or_a_kind_takes_them_from_its_key() -> None:
    columns = Column("kernel"), Column("hbm_bytes", "HBM"), Column("time_s"), Column("what", "")
    assert [column.title for column in columns] == ["kernel", "HBM", "time_s", ""]
    assert [column.kind for column in columns] == ["text", "bytes", "seconds", "text"]
    assert Column("hbm_bytes", kind="right").kind == "right"


def test_csv_holds_the_numbers_as_they_are() -> None:
    rows = list(csv.reader(io.StringIO(TABLE.csv())))
    assert rows[0] == ["kernel", "hbm_bytes", "time_s"]
    assert rows[1] == ["fa2", "2500000000", "0.00125"]
    assert rows[2] == ["naive|wide", str(3 << 53), ""]


def test_markdown_escapes_bars_and_aligns_numbers() -> None:
    head, rule, first, second = TABLE.markdown().splitlines()
    assert rule == "| --- | ---: | ---: |"
    assert first == "| fa2 | 2.5 GB | 1.25 ms |"
    assert second.count("|") - second.count("\\|") == head.count("|")


def test_a_data_frame_has_the_keys_and_the_values() -> None:
    frame = TABLE.to_pandas()
    assert list(frame.columns) == ["kernel", "hbm_bytes", "time_s"]
    assert frame["hbm_bytes"].tolist() == [2_500_000_000, 3 << 53]
    assert "pandas" in type(frame).__module__


def test_records_take_the_columns_of_the_first() -> None:
    table = Table.of(
        [
            {"n": 12, "change": "+3.1 %", "word": "1 a"},
            {"n": None, "change": "", "word": "b", "more": 1},
        ]
    )
    assert [c.kind for c in table.columns] == [RIGHT, RIGHT, "text"]
    assert table.csv() == "n,change,word\n12,+3.1 %,1 a\n,,b\n"
    assert Table.of([]).csv() == ""
    assert Table.of([]).text() == Table.of([]).markdown() != ""


PRINTABLE = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=8)


@given(
    st.lists(st.tuples(PRINTABLE, st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
)
def test_csv_gives_every_value_back(rows: list[tuple[Cell, ...]]) -> None:
    table = Table(
        (Column("a", "A"), Column("b", "B", "bytes"), Column("c", "C", "number")), tuple(rows)
    )
    read = list(csv.reader(io.StringIO(table.csv(), newline="")))[1:]
    assert [(a, int(b), float(c)) for a, b, c in read] == rows


def test_pivoted_puts_each_value_in_its_place() -> None:
    columns = (
        Column("gpu", "GPU"),
        Column("seq_len", "N", "count"),
        Column("kernel", "kernel"),
        Column("l2_bytes", "bytes", "bytes"),
        Column("commands", "command", COMMANDS),
    )
    rows = (
        ("a100", 512, "fa2", 2000, "P1"),
        ("a100", 512, "naive", 4000, "P2"),
        ("a100", 1024, "fa2", 8000, "P3 P1"),
    )
    pivoted = Table(columns, rows).pivoted(("gpu", "seq_len"), "kernel", ("l2_bytes",))
    assert pivoted.cells() == [["a100", "512", "2 kB", "4 kB"], ["a100", "1,024", "8 kB", "-"]]
    across = Table(columns, rows).pivoted(("gpu", "kernel"), "seq_len", ("l2_bytes",))
    assert [c.title for c in across.columns] == ["GPU", "kernel", "N = 512", "N = 1,024"]
    assert across.cells() == [["a100", "fa2", "2 kB", "8 kB"], ["a100", "naive", "4 kB", "-"]]


@given(st.lists(st.integers(), unique=True, max_size=30), st.integers(2, 9))
def test_of_many_values_a_few_are_kept_with_both_ends(values: list[int], limit: int) -> None:
    spread = spread_out(values, limit)
    assert len(spread) == min(limit, len(values))
    assert spread == [v for v in values if v in spread]  # in order, none twice
    assert spread[:1] == values[:1]
    assert spread[-1:] == values[-1:]


def test_columns_that_repeat_themselves_head_groups_of_rows() -> None:
    columns = (Column("gpu", "GPU"), Column("kernel", "kernel"), Column("seq_len", "N", "count"))
    rows = (("a100", "fa2", 512), ("a100", "fa2", 1024), ("h100", "fa2", 512))
    assert group_columns(Table(columns, rows)) == 2
    assert [head for head, _ in groups(Table(columns, rows))] == ["a100, fa2", "h100, fa2"]
    assert group_columns(Table(columns, rows[1:])) == 0  # the GPU alone names a row
    assert groups(Table(columns[:2], (("a100", "fa2"), ("a100", "fa3")))) == [
        ("a100", [["a100", "fa2"], ["a100", "fa3"]])
    ]


def test_a_prediction_is_a_frame_of_its_traffic() -> None:
    prediction = predict(AttentionProblem(heads=2, seq_q=512), "fa2", "a100")
    frame = prediction.to_pandas()
    of_level = frame.groupby(["level", "direction"])["bytes"].sum()
    for level in ("l2", "hbm"):
        for direction in ("read", "write"):
            assert of_level.get((level, direction), 0) == prediction.total(level, direction)


def test_studies_are_frames_of_their_rows() -> None:
    problem = AttentionProblem(heads=2, seq_q=512)
    ranking = pick_tiles(problem, "a100")
    assert ranking.to_pandas()["time_s"].tolist() == [c.time_s for c in ranking.candidates]
    side_by_side = compare([problem], ["naive", "fa3"], ["a100"])
    frame = side_by_side.to_pandas()
    assert frame["kernel"].tolist() == ["naive", "fa3"]
    assert frame["reason"].notna().tolist() == [False, True]
    step = predict_training(
        Decoder(layers=1, width=128, heads=2, vocabulary=0), Setup(seq_len=64), "l4"
    )
    assert step.to_pandas()["peak"].max() == step.peak_bytes
    fitting = frontier(step.model, step.setup, step.profile, "layers", [1, 2], [64, 128, 192])
    grid = fitting.to_pandas().pivot(index="layers", columns="seq_len", values="peak_bytes")
    assert grid.to_numpy().tolist() == [list(row) for row in fitting.peak_bytes]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.01, 0.3))
def test_labels_stand_apart_in_the_order_of_their_lines(wanted: list[float], gap: float) -> None:
    places = apart(wanted, gap, 0.0, 1.0)
    assert all(-1e-9 <= v <= 1 + 1e-9 for v in places)
    by_place = sorted(places)
    least = min(gap, 1 / max(1, len(wanted) - 1))
    assert all(b - a >= least - 1e-9 for a, b in pairwise(by_place))
    assert all(
        places[a] < places[b]
        for a in range(len(wanted))
        for b in range(len(wanted))
        if wanted[a] < wanted[b]
    )
    if all(b - a >= gap for a, b in pairwise(sorted(wanted))):
        assert places == pytest.approx(wanted)


def test_a_line_below_others_is_wider_and_lines_without_difference_are_one() -> None:
    lines = [
        axes.line(name, [1, 2], ys, ["", ""], n)
        for n, (name, ys) in enumerate({"a": [1.0, 5.0], "b": [1.0, 9.0], "c": [20.0, 9.5]}.items())
    ]
    widths = [line["line"]["width"] for line in layered(lines)]
    assert widths[0] > widths[1] == widths[2]
    assert alike({"a": [1.0, 5.0], "b": [1.0, 9.0], "c": [1.001, 5.0]}) == [["a", "c"], ["b"]]


def test_the_winning_cells_are_green(monkeypatch: pytest.MonkeyPatch) -> None:
    ranked_table = Table((Column("rank"), Column("time_s", "time")), ((1, 1e-3), (2, 2e-3)))
    assert "\x1b" not in ranked_table.winning("rank", [1]).text()
    monkeypatch.setattr(terminal, "in_colour", lambda stream=None: True)
    for table in (ranked_table.winning("rank", [1]), ranked_table.winning("time_s", [1e-3])):
        head, first, second = table.text().splitlines()
        assert "\x1b[32m" in first
        assert "\x1b" not in head + second
    assert ranked_table.winning("absent", [1]) == ranked_table


def test_numbers_that_are_pivoted_stand_in_their_order() -> None:
    columns = (Column("gpu", "GPU"), Column("n", "N", "count"), Column("value", "value", "count"))
    rows = (("l4", 64, 1), ("l4", 8, 2), ("t4", 16, 3), ("t4", 8, 4))
    pivoted = Table(columns, rows).pivoted(("gpu",), "n", ("value",))
    assert [column.title for column in pivoted.columns] == ["GPU", "N = 8", "N = 16", "N = 64"]
    assert pivoted.cells() == [["l4", "2", "-", "1"], ["t4", "4", "3", "-"]]
