"""Each field of a launch is found by its name: what it is, who sets it and who reads it, on a page made of the source."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from scripts import ROOT, load_script

from iosim.kernel.launch import Launch

PAGE = ROOT / "docs" / "generated" / "launch-fields.md"

if not PAGE.is_file():
    pytest.skip("iosim runs from an install without its docs", allow_module_level=True)

SCRIPT = load_script("docs/generated/make_launch_fields.py")
FIELDS = SCRIPT.fields()


def lacking(field: object) -> list[str]:
    """What the source does not say of a field."""
    of = ("meaning", "said_in", "set_in", "read_in")
    return [name for name in of if not getattr(field, name)]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_field_says_what_it_is_and_is_set_and_read(field: object) -> None:
    assert lacking(field) == []


def test_the_page_has_every_field_and_where_it_is_said() -> None:
    assert [field.name for field in FIELDS] == [field.name for field in fields(Launch)]
    rows = PAGE.read_text(encoding="utf-8")
    for launch_field in FIELDS:
        assert (
            f"| `{launch_field.name}` | {launch_field.meaning} | `{launch_field.said_in}` |" in rows
        ), "run docs/generated/make_launch_fields.py"


def test_rooms_that_describe_set_and_readers_read() -> None:
    by_name = {field.name: field for field in FIELDS}
    assert by_name["walks_round"].set_in == ("catalog/algorithms/efficient.py",)
    assert by_name["touched"].set_in == ("code/addresses_launch.py",)
    assert by_name["schedule"].said_in == "kernel/schedule.py"
    assert "readers/replay/lowering.py" in by_name["joins"].read_in


def test_a_planted_field_that_nobody_reads_is_seen() -> None:
    assert lacking(replace(FIELDS[0], read_in=())) == ["read_in"]
    assert lacking(replace(FIELDS[0], meaning="", set_in=())) == ["meaning", "set_in"]


def test_a_field_of_another_object_is_no_read() -> None:
    reads = SCRIPT._reads
    tree = SCRIPT.ast.parse("launch.work; tensor.name; chain.launches[0].role; main.touched = 1")
    names = ["name", "work", "role", "touched"]
    reads_found = [name for node in SCRIPT.ast.walk(tree) for name in reads(node, names)]
    assert sorted(reads_found) == ["role", "work"]
