"""The first lines of every command: an answer in one breath. At most 40 words a line, a number with its unit as one;
"per" where it means per; no list of kinds; the time where there is one, and one word of confidence."""

from __future__ import annotations

import json
import re

import pytest
from effort import quick_every

from iosim.commands.cli import main

pytestmark = pytest.mark.usefixtures("replays_once")

MOST_WORDS, MOST_LINES = 40, 9
PER = re.compile(
    r"\b(?:tokens?|bytes|elements|operations|joules|dollars|times|\$[\d.]+|[kMGT]?B|[mu]?s|registers?|keys?|rows?) an? "
    r"(?:second|hour|token|head|step|GPU|tile|call|layer|CTA|block|thread|million|billion|launch|kernel|sequence)\b"
)
"""X a Y, where X per Y is meant."""
KINDS = re.compile(r"\d+ (?:measured|fitted|published|inferred|assumed|taken from)\b")
"""How many numbers are known how: provenance, which stands under the answer."""

PREDICTED = [
    "predict --gpu t4 --kernel sdpa --seq-len 1k",
    "predict --gpu a100 --kernel naive,fa2 --seq-len 1k",
    "predict --gpu a100,h100,t4 --kernel naive,cutlass --seq-len 512",
    "predict --gpu h100 --kernel fa2 --seq-len 512,1k",
    "predict --gpu h100 --kernel fa2 --seq-len 512 --l2 warm",
    "predict --gpu a100 --kernel fa2 --seq-len 1k --method capacity",
    "predict --gpu h200 --kernel fa2 --heads 2 --seq-len 16k --causal --dtype bf16",
    "predict --model llama-3-8b --gpu h100,a100 --seq-len 512",
    "compare --gpu a100,t4 --kernel naive,cutlass --seq-len 1k --baseline naive",
    "compare --gpu a100 --kernel naive,fa2,cutlass --seq-len 512,1k --kv-heads 8",
    "compare --model llama-3-8b --gpu h100 --kernel fa2,fa3 --seq-len 256",
    "compare --gpu h100,h200 --kernel fa2 --per dollar --price h100=2,h200=3 --seq-len 512",
    "explain --gpu a100 --kernel fa2,naive --heads 4 --seq-len 1k",
    "explain --gpu t4 --kernel flash --heads 2 --seq-len 4k",
    "explain --gpu t4 --kernel flash --heads 2 --seq-len 1k --time",
    "trace --gpu h200 --kernel fa2,cudnn --heads 4 --seq-len 1k",
    "tiles --gpu t4,l4 --seq-len 512",
    "orders --gpu h200 --heads 4 --seq-len 1k --causal",
    "decode --gpu h100 --context 1k",
    "decode --model llama-3-8b --gpu h100,a100 --batch 8 --context 64k",
    "decode --model deepseek-v3.2 --gpu h200 --context 8k --layers 1",
    "latency --stack vllm,sglang --gpu h100 --seq-len 1 --seq-len-k 4k",
    "latency --model llama-3-8b --stack vllm --gpu h100 --seq-len 1 --seq-len-k 1k",
    "ring --gpu h100 --seq-len 4k",
    "model llama-3-8b --gpu h100,a100 --seq-len 512",
    "train-memory --gpu h100",
    "train-memory --gpu h100 --layers 2 --precision bf16 --data-parallel 8 --zero 3 --lora-rank 8",
    "model gpt2 --gpu a100,t4 --layers 2 --seq-len 64 --price a100=1.5,t4=0.35",
]
"""Those with a time."""
OTHERS = [
    "compare --model llama-3-8b --gpu a100,h200 --per token --batch 8 --seq-len 1 --seq-len-k 4k",
    "predict --gpu a100 --kernel fa2 --seq-len 1k --method bounds",
    "tiles --gpu rtx-4090 --head-dim 256 --tile 128x128 --seq-len 1k",
    "formula flash",
    "formula naive --gpu a100",
    "formula fa2 --bound --seq-len 512",
    "train-memory --gpu l4 --frontier batch",
    "check-claim --hbm 276.8MB --gpu a100 --kernel fa2 --seq-len 1024",
    "check-claim --hbm 40.3GB --gpu a100 --kernel fa2 --seq-len 1024",
    "check-claim --hbm 9x --time 2ms --gpu a100 --kernel fa2 --seq-len 1024",
    "reproduce --section A",
    "profiles show t4",
    "kernels show fa2",
    "models show llama-3-8b",
]
ON_FP32_UNITS = [
    "predict --gpu t4 --kernel flash --seq-len 512",
    "predict --gpu v100 --kernel naive,flash --seq-len 512",
    "compare --gpu t4 --kernel naive,flash --seq-len 512",
    "trace --gpu t4 --kernel flash --heads 4 --seq-len 1k",
    "orders --gpu v100 --kernel flash --heads 4 --seq-len 512",
    "decode --gpu t4 --kernel flash --context 512",
    "ring --gpu v100 --kernel flash --seq-len 4k",
]
"""GPUs whose tensor cores do not take bf16."""
DTYPE = re.compile(r"\b(?:amp-)?(?:fp|bf|int)\d+\b")
WITHOUT_DTYPE = ("reproduce", "profiles show", "formula flash", "formula naive")
"""Commands that ask for no call of one type: rows of papers, a GPU, formulas whose e is the bytes of an element."""
TIME = re.compile(r"\d (?:[mun]?s)\b")


def words(line: str) -> int:
    """Words of a line, a number and its unit as one."""
    return len(re.sub(r"([\d.]+) ([kMGT]?B|[mun]?s|GFLOP|%|TB/s|GB/s)\b", r"\1\2", line).split())


def first_lines(line: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert main(line.split()) == 0
    return capsys.readouterr().out.split("\n\n")[0].splitlines()


@pytest.mark.parametrize("line", [*quick_every(PREDICTED, 2), *quick_every(OTHERS, 2)])
def test_the_answer_is_one_breath(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = first_lines(line, capsys)
    assert 0 < len(lines) <= MOST_LINES
    for one in lines:
        assert words(one) <= MOST_WORDS, one
        assert PER.search(one) is None, one
        assert KINDS.search(one) is None, one
        assert one[-1] in ".:", one
    if line in PREDICTED:
        assert any(TIME.search(line) for line in lines)
    has_dtype = not line.startswith(WITHOUT_DTYPE) and "is published" not in lines[0]
    assert not has_dtype or DTYPE.search(" ".join(lines)), lines


@pytest.mark.parametrize("line", ON_FP32_UNITS)
def test_bf16_on_a_gpu_without_it_is_said_alike(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = first_lines(f"{line} --dtype bf16", capsys)
    assert max(map(words, lines)) <= MOST_WORDS, lines
    assert "in bf16 on fp32 units" in " ".join(lines)


@pytest.mark.parametrize(
    "line", [line for line in PREDICTED if line.startswith(("predict", "explain"))]
)
def test_it_ends_with_one_word_of_confidence_and_json_has_it(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = first_lines(line, capsys)
    assert re.search(r"(Simulated|Estimated|Bounded)[^.]*\.( Backed by [^.]*\.)?$", lines[-1]), (
        lines[-1]
    )
    assert main([*line.split(), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] == "\n".join(lines)


def test_two_kernels_are_held_against_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = first_lines("predict --gpu a100 --kernel naive,fa2 --seq-len 4096", capsys)
    assert re.match(
        r"fa2 on a100-sxm-80gb in fp16 reads 21\.\dx fewer bytes from HBM than naive \(", line
    )
    assert "S and P (1.074 GB each) do not fit the 41.94 MB L2" in line
    assert line.endswith("Simulated. Backed by public counters.")


def test_provenance_stands_under_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decode", "--gpu", "h100", "--context", "1k"]) == 0
    out = capsys.readouterr().out
    assert KINDS.search(out.split("\n\n", 1)[1])
