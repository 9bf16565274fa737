"""docs/architecture.md answers where things lie: its paths exist, its floors are those that the imports keep."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from house import FLOORS, edges, room
from scripts import ROOT

import iosim
from iosim.catalog.algorithms.registry import algorithm_of
from iosim.problem.fields import FIELDS, ProblemFields
from iosim.show.tables import Column

PAGE = ROOT / "docs" / "architecture.md"

if not PAGE.is_file():
    pytest.skip("iosim runs from an install without its docs", allow_module_level=True)

TEXT = PAGE.read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """Cells of the rows of the first table below a heading."""
    below = TEXT.split(f"\n## {heading}\n")[1]
    lines = re.search(r"(\|.*\n)+", below)
    assert lines is not None
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in lines[0].splitlines()[2:]
    ]


def row(*words: str) -> tuple[list[Path], str]:
    """The files and the imports of the row of "Where things lie" that all `words` are in."""
    (cells,) = [
        cells for cells in table("Where things lie") if all(word in cells[0] for word in words)
    ]
    return [ROOT / name for name in re.findall(r"`(iosim/[\w./-]+)`", cells[1])], cells[2]


def imports_keep(file: Path, column: str) -> bool:
    """Whether the other rooms that `file` imports are those which the page allows it."""
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    others = {room(other) for other in edges()[name] if other != "iosim"} - {room(name)}
    below = {other for other, floor in FLOORS.items() if floor < FLOORS[room(name)]}
    allowed = below if "all" in column else set(re.findall(r"`(\w+)`", column))
    return others <= allowed <= below


def test_it_is_two_pages() -> None:
    assert len(TEXT.split()) < 1200


def test_every_path_exists() -> None:
    for name in re.findall(r"`((?:iosim|docs|tests)/[\w./-]+)`", TEXT):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`([\w]+/[\w/.-]+\.py)`", TEXT):
        assert (ROOT / name).exists() or (ROOT / "iosim" / name).exists(), name


def test_the_floors_are_those_of_the_imports() -> None:
    rows = table("Rooms and floors")
    assert {cells[1].strip("`"): int(cells[0]) for cells in rows} == FLOORS


def test_where_the_tile_of_fa3_lies() -> None:
    (file,), column = row("fa3", "head_dim 64")
    tiles = tomllib.loads(file.read_text(encoding="utf-8"))["tile"]
    assert any((t["head_dim"], t["block_q"], t["block_k"]) == (64, 192, 192) for t in tiles)
    assert "none" in column


@pytest.mark.slow
def test_where_the_formula_of_naive_lies() -> None:
    (plan, forms), column = row("formula", "naive")
    assert algorithm_of("naive").planner.__module__ == ".".join(
        plan.relative_to(ROOT).with_suffix("").parts
    )
    assert "def closed_form" in forms.read_text(encoding="utf-8")
    assert imports_keep(forms, column)
    assert "iosim.readers" not in set(edges()["iosim.catalog.algorithms.naive"])


def test_where_the_replacement_of_the_l2_lies() -> None:
    (file,), _ = row("L2", "replacement")
    assert file.suffix == ".h"
    assert "victim(" in file.read_text(encoding="utf-8")


def test_where_the_text_of_a_table_cell_lies() -> None:
    (file,), column = row("table cell")
    assert Column.__module__ == ".".join(file.relative_to(ROOT).with_suffix("").parts)
    assert Column("b", "bytes", "bytes").text(1500) == "1.5 kB"
    assert imports_keep(file, column)


def test_where_the_option_page_size_lies() -> None:
    (*_, file), column = row("--page-size")
    assert ProblemFields.__module__ == ".".join(file.relative_to(ROOT).with_suffix("").parts)
    assert FIELDS["page_size"].option == "--page-size"
    assert imports_keep(file, column)


def test_the_room_of_the_verb_does_not_hide_it() -> None:
    assert callable(iosim.predict)
    assert not (ROOT / "iosim" / "predict.py").exists()
