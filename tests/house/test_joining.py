"""What those need who join: pages that say how, templates that ask for what helps, a changelog by version, the site."""

from __future__ import annotations

import datetime
import re
import tomllib
from typing import Any

import pytest
from scripts import ROOT, load_script

import iosim

if not (ROOT / "CONTRIBUTING.md").is_file():
    pytest.skip("iosim runs from an install without its sources", allow_module_level=True)

TEMPLATES = ROOT / ".github" / "ISSUE_TEMPLATE"


def read_yaml(name: str) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_changelog_is_by_version_and_dated() -> None:
    heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert heads[0] == "Unreleased"
    versions = [
        re.fullmatch(r"(\d+)\.(\d+)\.(\d+) - (\d{4}-\d\d-\d\d)", head) for head in heads[1:]
    ]
    assert all(versions), heads
    dates = [datetime.date.fromisoformat(match[4]) for match in versions if match]
    assert dates == sorted(dates, reverse=True)
    assert heads[1].split()[0] == iosim.__version__


def test_the_citation_is_of_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    released = re.search(
        r"^## (\S+) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M
    )
    assert released
    assert f"\nversion: {released[1]}\n" in text
    assert f"\ndate-released: {released[2]}\n" in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"\nlicense: {project['license']}\n" in text


def test_the_workflow_runs_all_of_ci() -> None:
    steps = read_yaml(".github/workflows/ci.yml")["jobs"]["all"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["bash .ci/run"]


@pytest.mark.parametrize("name", ["bug", "request", "counter"])
def test_a_template_asks_for_what_helps(name: str) -> None:
    template = read_yaml(f".github/ISSUE_TEMPLATE/{name}.yml")
    fields = [field for field in template["body"] if field["type"] != "markdown"]
    assert template["name"]
    assert template["description"]
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_a_counter_that_disagrees_comes_as_json_of_validate() -> None:
    (field,) = [
        field
        for field in read_yaml(".github/ISSUE_TEMPLATE/counter.yml")["body"]
        if field.get("id") == "json"
    ]
    assert "iosim validate --ncu FILE.csv --format json" in field["attributes"]["description"]
    assert field["validations"]["required"] is True


def test_hooks_before_a_commit_are_the_lint_of_ci() -> None:
    (local,) = read_yaml(".pre-commit-config.yaml")["repos"]
    entries = {hook["id"]: hook["entry"] for hook in local["hooks"]}
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for name in ("ruff-check", "ruff-format", "mypy"):
        assert entries[name] in ci
    files = {
        hook["id"]: hook["files"]
        for hook in local["hooks"]
        if hook["id"] in ("profiles", "kernels")
    }
    assert re.search(files["profiles"], "hardware_profiles/a10.toml")
    assert not re.search(files["profiles"], "hardware_profiles/compute_capability.toml")
    assert re.search(files["kernels"], "iosim/catalog/libraries/fa2.toml")


def test_the_site_has_every_page_of_its_menu_and_every_public_name() -> None:
    site = load_script("docs/make_site.py")
    pages = {page.as_posix() for page in site.pages()} | {site.REFERENCE.as_posix()}
    menu = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    assert len(menu) > 15
    assert set(menu) <= pages
    reference = site.reference()
    for name in iosim.__all__:
        assert re.search(rf"^::: iosim\.[\w.]+\.{name}$", reference, re.M), name


def test_a_block_bears_its_language_alone_on_the_site() -> None:
    site = load_script("docs/make_site.py")
    assert site.plain_fences("```text part\na\n```\n") == "```text\na\n```\n"


def test_ci_builds_the_site() -> None:
    assert "python docs/make_site.py" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_contributing_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name in re.findall(r"`((?:iosim|tests|docs|hardware_profiles)/[\w./-]+)`", text):
        if "NAME" not in name:
            assert (ROOT / name).exists(), name


@pytest.mark.parametrize("folder", ["kernels/measurements", "experiments/measurements"])
def test_provenance_names_no_place_of_a_machine(folder: str) -> None:
    """Commands are to be run again elsewhere: they name files, not where one machine kept them."""
    text = (ROOT / folder / "provenance.toml").read_text(encoding="utf-8")
    assert re.findall(r"[ =\"](?:/root|/home|/work|/tmp)/\S*", text) == []
