"""The schema checker: each shipped data file, mutated in every key, is refused with the file and the key named."""

from __future__ import annotations

import copy
import csv
import io
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import effort
import pytest

from iosim.base import schema
from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.base.schema import Problem, Table, read_toml
from iosim.catalog import resource_table
from iosim.catalog.libraries import catalog_file, entry
from iosim.catalog.libraries.builds import spills
from iosim.catalog.libraries.loader import checked, completed
from iosim.commands.cli import main
from iosim.evidence.validate import reasons
from iosim.hardware import profile_file
from iosim.studies.distributed import links

Check = Callable[[dict[str, Any]], list[Problem]]
PROFILES = data_dir("hardware_profiles")


class File(NamedTuple):
    """A shipped file: how it is checked, and the tables whose keys are names that anybody may choose."""

    path: Path
    check: Check
    free: tuple[str, ...] = ()


def by(table: Table) -> Check:
    return lambda data: list(table.problems(data))


FILES = [
    *(
        File(path, lambda data: profile_file.parse(data).problems, ("sources",))
        for path in sorted(PROFILES.glob("*.toml"))
        if path.name != profile_file.INHERITANCE_FILE
    ),
    File(PROFILES / profile_file.INHERITANCE_FILE, by(profile_file.INHERITANCE), ("sources",)),
    *(
        File(path, lambda data: catalog_file.problems(completed(data)))
        for path in sorted(Path(catalog_file.__file__).parent.glob("*.toml"))
    ),
    File(links.FILE, by(links.LINKS), ("link",)),
    File(reasons.FILE, by(reasons.REASONS)),
    File(data_dir("kernels") / "resources.toml", by(resource_table.STAMP)),
]


class Place(NamedTuple):
    """A key in a file: the tables and list places that lead to it, and how messages write it."""

    steps: tuple[str | int, ...]
    key: str

    def parent(self, data: Any) -> Any:
        for step in self.steps[:-1]:
            data = data[step]
        return data


def places(value: Any, steps: tuple[str | int, ...] = (), key: str = "") -> Iterator[Place]:
    """Every key of a file, but one alone of tables that are alike: the first of a list."""
    if isinstance(value, dict):
        for name, item in value.items():
            path = f'{key}."{name}"' if "." in name else f"{key}.{name}" if key else name
            path = path.removeprefix(".") if key else name
            yield Place((*steps, name), path)
            yield from places(item, (*steps, name), path)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for n, item in enumerate(value[:1]):
            yield from places(item, (*steps, n), f"{key}[{n}]")


@cache
def new_places() -> dict[Path, list[Place]]:
    """Those of each file's keys that no file of its form before it has, so that of each key its form is tried once.
    Files of one folder have one form, with or without what the file that they are like has. A quick run takes one in
    four."""
    known: set[tuple[Path, bool, str]] = set()
    places_by_file: dict[Path, list[Place]] = {}
    for file in FILES:
        data = read_toml(file.path)
        keys = {
            (file.path.parent, "like" in data, re.sub(r"\[\d+\]", "", p.key)): p
            for p in places(data)
        }
        places_by_file[file.path] = [place for key, place in keys.items() if key not in known][
            :: 4 if effort.quick else 1
        ]
        known |= keys.keys()
    return places_by_file


def named(problems: list[Problem], key: str) -> bool:
    """Whether a problem is told of this key, or of what stands in it."""
    return any(p.key.replace('"', "").startswith(key.replace('"', "")) for p in problems)


def other_type(value: Any) -> Any:
    """A value of another type."""
    if isinstance(value, bool):
        return "yes"
    if isinstance(value, str):
        return 17
    if isinstance(value, list):
        return 1.5
    if isinstance(value, dict):
        return "a text"
    return [str(value)]


@pytest.fixture(params=FILES, ids=lambda file: file.path.name)
def shipped(request: pytest.FixtureRequest) -> tuple[File, dict[str, Any]]:
    file: File = request.param
    return file, read_toml(file.path)


def test_shipped_files_are_clean(shipped: tuple[File, dict[str, Any]]) -> None:
    file, data = shipped
    assert file.check(data) == []


def test_a_misspelt_key_is_refused(shipped: tuple[File, dict[str, Any]]) -> None:
    file, data = shipped
    for place in new_places()[file.path]:
        if isinstance(place.steps[-1], str) and not (
            len(place.steps) == 2 and place.steps[0] in file.free
        ):
            wrong = copy.deepcopy(data)
            parent = place.parent(wrong)
            name = place.steps[-1]
            misspelt = {f"{key}x" if key == name else key: value for key, value in parent.items()}
            parent.clear()
            parent.update(misspelt)
            assert named(file.check(wrong), f"{place.key}x"), place.key


def test_a_misspelt_key_gets_the_right_one_suggested() -> None:
    data = read_toml(PROFILES / "t4.toml")
    data["l2_byte"] = data.pop("l2_bytes")
    (problem,) = profile_file.parse(data).problems
    assert problem.key == "l2_byte"
    assert problem.reason.endswith("did you mean l2_bytes?")


def test_a_value_of_another_type_is_refused(shipped: tuple[File, dict[str, Any]]) -> None:
    file, data = shipped
    for place in new_places()[file.path]:
        wrong = copy.deepcopy(data)
        parent = place.parent(wrong)
        parent[place.steps[-1]] = other_type(parent[place.steps[-1]])
        assert named(file.check(wrong), place.key), place.key


def test_a_required_key_that_is_missing_is_named(shipped: tuple[File, dict[str, Any]]) -> None:
    """Without any one key the file is as clean as before, or that key (or the one that needs it) is named."""
    file, data = shipped
    refused = 0
    for place in dict.fromkeys(
        [*(p for p in places(data) if len(p.steps) == 1), *new_places()[file.path]]
    ):
        wrong = copy.deepcopy(data)
        del place.parent(wrong)[place.steps[-1]]
        problems = file.check(wrong)
        refused += bool(problems)
        if problems and place.steps[0] != "sources":
            above = place.key.rpartition(".")[0]
            assert (
                named(problems, place.key) or named(problems, above) or named(problems, "sources")
            ), place.key
    assert refused >= (1 if "like" in data else 2)  # the file that it is like has the others


def test_the_resource_table(tmp_path: Path) -> None:
    with (data_dir("kernels") / resource_table.FILE).open(encoding="utf-8") as file:
        header, *rows = list(csv.reader(file))[:3]
    path = tmp_path / "resources.csv"

    def refused(head: list[str], cells: list[str]) -> str:
        text = io.StringIO()
        csv.writer(text).writerows([head, rows[0], cells])
        path.write_text(text.getvalue())
        with pytest.raises(InputError) as caught:
            resource_table.read_table(path)
        return str(caught.value)

    assert tuple(header) == tuple(resource_table.COLUMNS)
    for n, column in enumerate(header):
        renamed = [f"{name}x" if name == column else name for name in header]
        assert f"{path}': {column}x: unknown key; did you mean {column}?" in refused(
            renamed, rows[1]
        )
        assert f"{path}': {column}: missing" in refused(header[:n] + header[n + 1 :], rows[1][:-1])
        if column not in ("kernel", "compiler"):
            cells = [*rows[1][:n], "x1", *rows[1][n + 1 :]]
            assert f"{path}', line 3: {column}: " in refused(header, cells)
    assert "line 3: has 3 cells; accepted: 16" in refused(header, rows[1][:3])


def test_messages_are_one_line_with_file_and_key() -> None:
    table = Table({"warps": schema.Whole(1, 32)}, required=("warps",))
    with pytest.raises(
        InputError, match=r"^kernels\.toml: warps: 'four' is not a whole number; accepted: "
    ):
        schema.checked({"warps": "four"}, table, "kernels.toml")
    with pytest.raises(
        InputError,
        match=r"^kernels\.toml: waprs: unknown key; did you mean warps\? \(and 1 more\)$",
    ):
        schema.checked({"waprs": 4}, table, "kernels.toml")


def own_file(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    text = (Path(catalog_file.__file__).parent / "fa2.toml").read_text(encoding="utf-8")
    for old, new in (('name = "fa2"', 'name = "mine"'), *changes):
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_kernel_file_is_taken_wherever_a_kernel_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(own_file(tmp_path))
    assert main(["kernels", "check", path]) == 0
    assert "no problems" in capsys.readouterr().out
    call = ["--gpu", "a100", "--seq-len", "512", "--heads", "2"]
    totals = []
    for kernel in ("fa2", path):
        assert main(["predict", *call, "--kernel", kernel, "--format", "json"]) == 0
        (printed,) = json.loads(capsys.readouterr().out)["predictions"]
        totals.append((printed["totals"], printed["time_s"]))
    assert totals[0] == totals[1]
    assert printed["kernel"]["name"] == "mine"
    for command in ("compare", "explain"):
        assert main([command, *call, "--kernel", path]) == 0
        assert "mine" in capsys.readouterr().out


def test_a_changed_kernel_file_is_read_anew(tmp_path: Path) -> None:
    path = own_file(tmp_path)
    assert entry(str(path))["kernel"]["writes_lse"] is True
    own_file(tmp_path, ("writes_lse = true", "writes_lse = false"))
    os.utime(path, ns=(1, 1))
    assert entry(str(path))["kernel"]["writes_lse"] is False


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        (
            "writes_lse",
            "writes_ls",
            "kernel.writes_ls: unknown key; did you mean kernel.writes_lse?",
        ),
        ('name = "mine"', 'name = "fa3"', "name: 'fa3' is the catalog's"),
        ('rules = "fa2"', 'rules = "fa9"', "rules: 'fa9' is not known; did you mean fa"),
        (
            "combine_waits = 6",
            "combine_wait = 6",
            "kernel.options.combine_wait: unknown key; did you mean",
        ),
        ('writes = ["dO_copy"]', "writes = 7", "backward_pass[0].writes: must be a list"),
        ("min_cc = 80", "min_cc = 80\nmax_cc = 75", "requires.min_cc: 80 is more than max_cc (75)"),
    ],
)
def test_a_kernel_file_with_a_mistake_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, refused: str
) -> None:
    path = str(own_file(tmp_path, (old, new)))
    assert main(["kernels", "check", path]) == 2
    assert refused in capsys.readouterr().out
    assert main(["predict", "--gpu", "a100", "--kernel", path]) == 2
    message = capsys.readouterr().err
    assert f"{path}': {refused}" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("name", ["fa2", "fa3", "cudnn", "flashmla", "naive", "triton"])
def test_a_kernel_is_shown_to_people(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "show", name]) == 0
    text = capsys.readouterr().out
    data = entry(name)
    for row in data["tile"]:
        assert f"{row['block_q']}x{row['block_k']}" in text
    for word in (
        data["title"],
        data["algorithm"],
        " ".join(data["source"].split()),
        *data.get("inferred", ()),
    ):
        assert word in text
    assert main(["kernels", "show", name, "--format", "json"]) == 0
    printed_kernel = json.loads(capsys.readouterr().out)["kernel"]
    assert len(printed_kernel.pop("spill", ())) == len(spills(data))
    assert len(printed_kernel.pop("backward_spill", ())) == len(spills(data, backward=True))
    assert printed_kernel.pop("checked") == list(checked(name))
    assert printed_kernel == {
        key: value for key, value in data.items() if key not in ("spill", "backward_spill")
    }


@pytest.mark.parametrize(
    "text",
    [
        ".".join(["a"] * 20_000) + " = 1",
        "[" + ".".join(["a"] * 20_000) + "]",
        "x = {" + ".".join(['"a"'] * 20_000) + " = 1}",
        "x = " + "[" * 20_000,
        "x = " + "{a=" * 20_000,
        " . ".join(["'k'"] * 5_000) + " = 1",
    ],
)
def test_what_is_nested_without_end_is_refused_at_once(text: str, tmp_path: Path) -> None:
    place = tmp_path / "deep.toml"
    place.write_text(f"schema = 1\n{text}\n")
    begin = time.process_time()
    with pytest.raises(InputError, match=r"nested too deeply|not valid TOML"):
        read_toml(place)
    assert time.process_time() - begin < 0.5


def test_a_long_text_is_not_taken_for_nesting(tmp_path: Path) -> None:
    place = tmp_path / "long.toml"
    sentence = "One two. Three. " * 200 + "." * 500 + " a.b.c.d " * 200
    place.write_text(
        f'text = "{sentence}"\nlong = "{"a" * 500_000}"\n'
        + "\n".join(f"k{n} = 1.5" for n in range(5_000))
    )
    begin = time.process_time()
    assert read_toml(place)["text"] == sentence
    assert time.process_time() - begin < 2


ONE = schema.Whole(1, 9)
ASCENDING, UNIQUE = (
    schema.ListOf(ONE, ascending=True),
    schema.ListOf(ONE, unique=True),
)
PAIRS = schema.Pairs(ONE, ONE, ("depth", "rate"))


@pytest.mark.parametrize(
    ("spec", "value", "reasons"),
    [
        (ASCENDING, [1, 2], []),
        (ASCENDING, [1, 1], ["must be in ascending order"]),
        (ASCENDING, [2, 1], ["must be in ascending order"]),
        (UNIQUE, [2, 1], []),
        (UNIQUE, [2, 1, 2], ["has the same entry twice"]),
        (PAIRS, [[1, 5], [2, 5]], []),
        (PAIRS, [[1, 5], [1, 6]], ["depth must be in ascending order"]),
        (PAIRS, [], ["must be a list with at least one entry"]),
        (PAIRS, "no", ["must be a list with at least one entry"]),
        (PAIRS, [[1, 5], [2]], ["must be a list of pairs [depth, rate]"]),
        (PAIRS, [1, 5], ["must be a list of pairs [depth, rate]"]),
        (PAIRS, [[1, 5], "ab"], ["must be a list of pairs [depth, rate]"]),
        (schema.Flag(), False, []),
        (schema.Flag(), 1, ["must be true or false, not 1"]),
        (schema.Flag(only=True), True, []),
        (schema.Flag(only=True), False, ["must be true, not False"]),
        (schema.Flag(only=True), 1, ["must be true, not 1"]),
    ],
)
def test_what_a_form_says_of_a_value(spec: Any, value: Any, reasons: list[str]) -> None:
    assert [problem.reason for problem in spec.problems(value, "x")] == reasons


def test_long_numbers_are_told_by_their_digits() -> None:
    assert schema.shown(10**21 - 1) == "9" * 21
    assert schema.shown(10**21) == "a number of more than 20 digits"
    assert schema.shown(-(10**21)) == "a number of more than 20 digits"


@pytest.mark.parametrize(
    ("table", "name", "path"),
    [
        ("", "heads", "heads"),
        ("", "two words", "two words"),
        ("kernel", "heads", "kernel.heads"),
        ("kernel", "two words", 'kernel."two words"'),
    ],
)
def test_a_key_is_named_as_toml_writes_it(table: str, name: str, path: str) -> None:
    assert schema._path(table, name) == path
