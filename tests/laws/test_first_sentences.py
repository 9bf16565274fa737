"""Numbers of a first sentence agree with each other, whatever is asked: problems drawn at random, in every command that
answers in sentences."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from iosim.commands.cli import main

UNITS = {
    "B": 1.0,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
}
BYTES = r"([\d.,]+ (?:B|kB|MB|GB|TB))"
TIME = r"([\d.,]+ (?:ns|us|ms|s))\b"
ROUNDED = 0.02
"""Three digits of two numbers, and of their ratio."""
GPUS = ("h100", "a100", "t4", "l4", "rtx-4090", "b200", "v100", "rtx-3090", "mi300x")
LINES = {
    "predict": "--seq-len {n} --method capacity --kernel naive,default",
    "compare": "--seq-len {n} --method capacity --kernel sdpa,naive",
    "explain": "--seq-len 300 --kernel flash",
    "orders": "--seq-len 300 --kernel flash",
    "tiles": "--seq-len {n}",
    "decode": "--context {n} --batch {b}",
    "ring": "--seq-len {n}",
    "train-memory": "--seq-len {n} --batch {b}",
}


def value(text: str) -> float:
    number, unit = text.split()
    return float(number.replace(",", "")) * UNITS[unit]


def near(a: float, b: float) -> bool:
    return abs(a - b) <= ROUNDED * max(abs(a), abs(b))


def drawn(command: str, seed: int) -> list[str]:
    rng = random.Random(f"{command} {seed}")
    heads = rng.choice((4, 8, 32))
    words = LINES[command].format(n=rng.choice(("300", "1k", "3000", "4k")), b=rng.choice("18"))
    sizes = ["--heads", str(heads)]
    if command == "train-memory":
        sizes += ["--width", str(64 * heads)]
    elif rng.random() < 0.5:
        sizes += ["--head-dim", rng.choice(("64", "96", "128", "256"))]
    return [command, "--gpu", rng.choice(GPUS), *sizes, *words.split()]


def wrong(command: str, said: str) -> Iterator[str]:
    """What in the first lines of an answer contradicts something else there."""
    for share in re.findall(r"([\d.]+) ?% of ", said):
        if float(share) > 100.5:
            yield f"{share} % of a bound"
    for times in re.findall(r"([\d.,]+)x the compulsory", said):
        if float(times.replace(",", "")) < 1:
            yield f"{times}x what cannot be less"
    found = re.search(
        rf"reads ([\d.,]+)x fewer bytes from HBM than \S+ \({BYTES} against {BYTES}\)", said
    )
    if found and not near(float(found[1].replace(",", "")), value(found[3]) / value(found[2])):
        yield found[0]
    found = re.search(rf"takes {TIME} per step of (\w+) tokens?: ([\d.,]+) tokens per second", said)
    if found:
        tokens = 1 if found[2] == "one" else int(found[2])
        if not near(float(found[3].replace(",", "")), tokens / value(found[1])):
            yield found[0]
    found = re.search(rf"(does not fit|fits) on \S+: {BYTES} of {BYTES} at the peak", said)
    if found and (value(found[2]) <= value(found[3])) != (found[1] == "fits"):
        yield found[0]
    found = re.search(rf"(?:reads|moves) {BYTES} .*?The SMs read {BYTES}: ", said)
    if found and command == "explain" and value(found[2]) < (1 - ROUNDED) * value(found[1]):
        yield f"the L2 serves less than nothing: {found[0]}"
    # Of two kernels each reason says whose it is.
    if command in ("predict", "compare") and re.search(r" than \w+", said):
        for reason in re.findall(r"\. ([^.]*(?:do not fit|live between|The SMs read))", said):
            if ": " not in f"{reason}:".partition("The SMs")[0]:
                yield f"whose? {reason}"


@pytest.mark.parametrize("command", LINES)
@pytest.mark.parametrize("seed", range(4))
def test_numbers_of_a_first_sentence_agree(
    command: str, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = drawn(command, seed)
    code = main(words)
    out, error = capsys.readouterr()
    if code:  # no kernel of that name there
        assert (code, len(error.splitlines())) == (2, 1), (words, error)
        assert "is no option" not in error
        return
    said = " ".join(out.split("\n\n")[0].split())
    assert not list(wrong(command, said)), (" ".join(words), said)
