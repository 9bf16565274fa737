"""Sentences of all commands where numbers are one, or carry a mark: nouns are single, ratios have nouns, marks a
legend."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from effort import examples, quick_every
from hypothesis import given, settings
from hypothesis import strategies as st

from iosim.base.units import seconds_text, some
from iosim.commands.cli import main
from iosim.prediction.result import MARKS

pytestmark = pytest.mark.usefixtures("replays_once")

VERBS = "s|is|was|has|does|lowers|needs|runs|contradicts"
WRONG = {
    "one and a plural": rf"(?<![\d.,:/x-])1 (?!(?:{VERBS})\b)(?:key/value |query |key |new )?[a-z]+s\b(?<!ss)",
    "a plural that is left open": r"\(s\)",
    "one thing with a verb for several": r"\b(?:1|one) [a-z]+ (?:are|were|have|fit)\b",
    "several without a plural": r"(?<![\d.,])[2-9] (?:head|token|layer|launch|GPU|warp|stage|split|sequence|cell)\b",
    "a bare ratio": r"times (?:less|more)(?! (?:at|between|bytes|of|time)\b)",
    "times as fast as nothing": r"as fast as one\b(?! GPU)",
    "noise of sums": r"\de-\d\d [num]?s\b",
}
ONES = (
    "predict --gpu h100 --heads 1 --seq-len 1 --kernel fa2",
    "predict --gpu t4 --heads 2 --kv-heads 1 --seq-len 1 --seq-len-k 2 --kernel cutlass",
    "predict --gpu h100 --seq-len 1,2 --heads 1 --kernel naive,fa2",
    "predict --model gpt2 --gpu l4 --seq-len 1 --layers 1",
    "compare --gpu h100 --seq-len 512 --kv-heads 1 --kernel naive,fa2 --method capacity",
    "compare --gpu v100 --seq-len 1k --heads 4 --kernel naive,cutlass",
    "explain --gpu h100 --heads 1 --seq-len 1 --kernel flash",
    "explain --time --gpu l4 --head-dim 1 --seq-len 64 --heads 2 --kernel math",
    "trace --gpu h100 --heads 1 --seq-len 1 --kernel fa2",
    "tiles --gpu v100 --heads 1 --seq-len 1 --top 1",
    "tiles --gpu v100 --seq-len 2 --heads 1 --tile 64x64",
    "tiles --gpu v100 --seq-len 1 --heads 1 --tile 16x32 --rejected",
    "orders --gpu h100 --heads 1 --seq-len 1 --top 1",
    "decode --gpu h100 --kv-heads 1 --batch 1 --context 1 --layers 1",
    "decode --gpu h100 --kv-heads 1 --batch-contexts 1,2 --layers 1",
    "latency --gpu h100 --stack vllm --batch-contexts 1,2",
    "ring --gpu h100 --num-gpus 1 --heads 1 --seq-len 8",
    "train-memory --gpu h100 --layers 1 --width 64 --heads 1 --seq-len 1 --batch 1",
    "train-memory --gpu h100 --frontier layers --layers 1 --seq-len 64",
    "check-claim --gpu h100 --hbm 1MB --heads 1 --seq-len 1 --kernel fa2",
    "formula flash --heads 1 --seq-len 1 --head-dim 64",
    "formula naive --heads 1 --seq-len 64 --head-dim 64 --dtype fp16 --batch 1 --bound --gpu a100",
    "sweep --gpu h100 --heads 1 --seq-len 1 --kernel fa2",
)


def faults(text: str) -> list[str]:
    return [
        f"{fault}: {m[0]!r}" for fault, wrong in WRONG.items() for m in re.finditer(wrong, text)
    ]


def said(capsys: pytest.CaptureFixture[str], line: str) -> str:
    main(line.split())
    out, err = capsys.readouterr()
    return out + err


@pytest.mark.parametrize("line", quick_every(ONES, 3))
def test_numbers_agree_with_their_nouns(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert faults(said(capsys, line)) == []


SIZES = {
    "--gpu": ("h100", "a100", "v100", "l4"),
    "--heads": ("1", "2", "32"),
    "--batch": ("1", "2"),
    "--head-dim": ("1", "64", "128"),
    "--seq-len": ("1", "2", "512"),
    "--dtype": ("fp16", "fp32"),
}
OTHERS = (
    "",
    "--causal",
    "--l2 warm",
    "--method capacity",
    "--kv-heads 1",
    "--pass bwd",
    "--seq-len-k 513",
)
COMMANDS = (
    "predict",
    "compare",
    "explain",
    "trace",
    "tiles --top 1",
    "check-claim --hbm 1MB",
    "orders --top 1",
)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(COMMANDS),
    st.fixed_dictionaries({k: st.sampled_from(v) for k, v in SIZES.items()}),
    st.sampled_from(OTHERS),
    st.sampled_from(("default", "naive", "flash", "math")),
)
def test_any_line_agrees(command: str, sizes: dict[str, str], other: str, kernel: str) -> None:
    import contextlib
    import io

    line = f"{command} {' '.join(f'{k} {v}' for k, v in sizes.items())} {other}"
    line += "" if command.split()[0] in ("tiles", "orders") else f" --kernel {kernel}"
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        main(line.split())
    assert faults(text.getvalue()) == [], line


def test_ratios_of_a_page_have_nouns_and_marks_their_legend(
    tmp_path: Path,
) -> None:
    file = tmp_path / "report.md"
    main(
        f"report --gpu h100 --kernel naive,fa2 --seq-len 512,1k --method capacity --out {file}".split()
    )
    page = file.read_text(encoding="utf-8")
    heads = [line for line in page.splitlines() if line.startswith("| GPU") and "command" in line]
    assert heads
    assert all("naive over it" in line and "command (listed at the end)" in line for line in heads)
    for section in page.split("\n## ")[1:]:
        if re.search(r"\d(?: [kMGT]?B|x)\*", section):
            assert f"{MARKS['capacity']} by the capacity rule" in section, section[:60]


def test_one_is_single() -> None:
    assert [some(n, "token") for n in (0, 1, 2, 4096)] == [
        "0 tokens",
        "1 token",
        "2 tokens",
        "4,096 tokens",
    ]
    assert seconds_text(2.1e-22) == "0 ns"
