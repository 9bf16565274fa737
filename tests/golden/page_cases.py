"""What pages hold, call by call: each section's words, plots and table, as eight hexadecimal digits of their text."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from command_cases import DATA, SMALL
from launch_cases import digits

from iosim.commands.cli import main
from iosim.show.page import Page

CALLS = (
    "compare --gpu a100,h100 --kernel naive,fa2,flash1 --seq-len 512,1k,2k --heads 4 --head-dim 64 --method capacity",
    f"compare --gpu a100,t4 --kernel fa2,cutlass {SMALL}",
    f"compare --gpu a100,h100 --per dollar --price a100=1.5,h100=2.5 --batch 1,4 {SMALL}",
    "compare --model llama-3-8b --gpu a100,h200 --per token --batch 8 --seq-len 1 --seq-len-k 4k",
    f"tiles --gpu rtx-4090,a100 {SMALL}",
    f"orders --gpu h100 --causal {SMALL}",
    f"trace --gpu h200 --causal {SMALL}",
    "decode --context 1k,4k --gpu h100,a100",
    "decode --context 4k --gpu h100 --batch 16 --model llama-3-8b",
    "latency --stack vllm,sglang --gpu h200 --seq-len 512",
    "ring --num-gpus 4 --causal --heads 8 --seq-len 8k --gpu h100",
    "train-memory --gpu l4 --layers 2 --seq-len 512",
    "train-memory --gpu a100 --model gpt2 --frontier batch",
    "model gpt2 --gpu h100 --seq-len 256 --training",
    "model llama-3-8b --gpu h100 --context 4k --batch 4",
    "report --gpu a100,t4 --kernel fa2,naive --seq-len 256,1k --heads 4 --head-dim 64 --method capacity",
    "sweep --gpu a100,t4 --kernel fa2,naive --seq-len 512,1k,2k --heads 4 --head-dim 64 --method capacity",
    f"validate --ncu {DATA}/ncu_h200.csv --gpu h200",
    "report --gpu a100 --kernel flash --mask butterfly --seq-len 2k,4k --heads 2 --head-dim 64 --method capacity",
)


def told(page: Page) -> list[Any]:
    """A page's head, and of each section its words, its plots and its table."""
    head = digits((page.title, page.subject, page.text, page.answer, page.verdict))
    return [head] + [
        f"{s.id} {digits((s.heading, s.text, s.legend, s.items, s.folded, s.across))} "
        f"{' '.join(digits(panel) for panel in s.panels)} {digits((s.table, s.brief))}"
        for s in page.sections
    ]


def cases(calls: Sequence[str] = CALLS) -> Iterator[tuple[str, Any]]:
    for line in calls:
        pages: list[Page] = []

        def html(page: Page, pages: list[Page] = pages, **_: Any) -> str:
            pages.append(page)
            return ""

        silence = io.StringIO()
        with (
            tempfile.TemporaryDirectory() as folder,
            patch("iosim.show.html.html", html),
            patch("iosim.commands.compare.html", html),
            patch("iosim.studies.report.html", html),
            contextlib.redirect_stdout(silence),
            contextlib.redirect_stderr(silence),
        ):
            place = Path(folder, "page.html")
            code = main([*line.split(), "--html", str(place)])
        assert code == 0, f"{line}: {silence.getvalue()}"
        (page,) = pages
        yield line.replace(str(DATA), "data"), told(page)
