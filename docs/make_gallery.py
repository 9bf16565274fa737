"""Writes the gallery in reports/: `python docs/make_gallery.py [report] [decode] [validation]`. Two minutes.

Each page is what a command makes (`iosim report`, `iosim decode`, `iosim validate --report`). The same code
and the same recorded rows give the same bytes.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from iosim.base.files import write_together
from iosim.show.html import html
from iosim.show.page import Page, markdown

REPORTS = Path(__file__).resolve().parent.parent / "reports"


def report() -> Page:
    """Five GPUs, ten sequence lengths, three kernels."""
    from iosim.problem.attention import AttentionProblem
    from iosim.studies.report import CaseGrid, as_page, build

    problems = tuple(
        AttentionProblem(heads=32, seq_q=512 << n, head_dim=128, dtype="fp16") for n in range(10)
    )
    return as_page(
        build(
            CaseGrid.of(("t4", "l4", "a100", "h100", "h200"), ("naive", "cutlass", "fa2"), problems)
        )
    )


def decode() -> Page:
    """Attention per generated token of a model with 32 query and 8 key/value heads, 1k to 1m tokens of context."""
    from iosim.studies.decode.study import run_decoding
    from iosim.studies.requests import DecodeRequest

    words = [
        "decode",
        "--gpu",
        "l4",
        "--gpu",
        "a100",
        "--gpu",
        "h100",
        "--gpu",
        "h200",
        "--context",
        "1k:1m:x2",
        "--html",
        "decode.html",
    ]
    request = DecodeRequest(gpu=["l4", "a100", "h100", "h200"], context="1k:1m:x2")
    return run_decoding(request).as_page(shlex.join(["iosim", *words]))


def validation() -> Page:
    """Predictions beside the recorded counters of an H200."""
    from iosim.evidence.validate import compare, read
    from iosim.evidence.validate.report import as_page
    from iosim.evidence.validate.rows import default_files, own_file
    from iosim.hardware.profile import load_profile

    files = [*default_files(), own_file()]
    return as_page(compare([row for file in files for row in read(file)], load_profile("h200")))


PAGES = {"report": report, "decode": decode, "validation": validation}


def make(names: list[str], folder: Path = REPORTS) -> None:
    """Write the pages of those names, as HTML and as Markdown."""
    for name in names:
        page = PAGES[name]()
        write_together({folder / f"{name}.html": html(page), folder / f"{name}.md": markdown(page)})


if __name__ == "__main__":
    unknown = set(sys.argv[1:]) - set(PAGES)
    if unknown:
        sys.exit(f"'{unknown.pop()}' is no page of the gallery; accepted: {', '.join(PAGES)}")
    make(sys.argv[1:] or list(PAGES))
