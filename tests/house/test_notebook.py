"""The notebook of the docs: its cells run, what they show is what stands there, and its pictures and links are
there."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from scripts import ROOT, load_script

DOCS = ROOT / "docs"

if not DOCS.is_dir():
    pytest.skip("iosim runs from an install without its docs", allow_module_level=True)

PLACE = DOCS / "tutorial.ipynb"


def kept() -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(PLACE.read_text(encoding="utf-8"))
    return notebook


def outputs(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [output for cell in notebook["cells"] for output in cell.get("outputs", [])]


@pytest.mark.slow
def test_its_cells_show_what_stands_below_them() -> None:
    pytest.importorskip("plotly")
    notebook = kept()
    for output in outputs(notebook):
        output.get("data", {}).pop("image/png", None)
    assert load_script(DOCS / "generated" / "make_tutorial.py").notebook(pictures=False) == notebook


def test_it_is_a_notebook_that_has_run() -> None:
    notebook = kept()
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert any("text/html" in output.get("data", {}) for output in outputs(notebook))


def test_a_figure_is_there_as_a_picture_too() -> None:
    figures = [
        o["data"] for o in outputs(kept()) if "application/vnd.plotly.v1+json" in o.get("data", {})
    ]
    assert figures
    for data in figures:
        assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")


def test_its_links_lead_somewhere() -> None:
    text = "".join("".join(c["source"]) for c in kept()["cells"] if c["cell_type"] == "markdown")
    targets = re.findall(r"\]\(([^)#:\s]+)\)", text)
    assert targets
    for target in targets:
        assert (DOCS / target).exists(), target
    assert "(tutorial.ipynb)" in (DOCS / "README.md").read_text(encoding="utf-8")
