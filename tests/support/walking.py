"""A visitor's way through the explorer's page of the whole question, and the command lines that its numbers are held
against."""

from __future__ import annotations

import contextlib
import io
import json
import math
import shlex
from typing import Any
from urllib.parse import urlencode

from browser import Browser

from iosim.commands.cli import main
from iosim.commands.explore import answer_question

COLLISIONS = """[...document.querySelectorAll('.draw svg')].flatMap((svg) => {
  const frame = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll('text')];
  const boxes = texts.map((text) => text.getBoundingClientRect());
  return boxes.flatMap((a, n) => [
    ...(a.left < frame.left - 1 || a.right > frame.right + 1 || a.bottom > frame.bottom + 1
      ? [`${texts[n].textContent} outside`] : []),
    ...boxes.slice(n + 1).flatMap((b, m) => a.left < b.right - 1 && b.left < a.right - 1
      && a.top < b.bottom - 2 && b.top < a.bottom - 2
      ? [`${texts[n].textContent} over ${texts[n + 1 + m].textContent}`] : []),
  ]);
})"""
"""Words of figures that lie over each other, or outside."""


def told(question: dict[str, Any], part: str) -> dict[str, Any]:
    answer = answer_question(json.dumps(question | {"part": part}))
    assert "error" not in answer, answer
    return answer


def printed(command: str) -> dict[str, Any]:
    """The JSON that a command line prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*shlex.split(command)[1:], "--format", "json"]) == 0
    answers: dict[str, Any] = json.loads(out.getvalue())
    return answers


class Address:
    def __init__(self, address: str) -> None:
        self.address = address

    def as_uri(self) -> str:
        return self.address


def opened(browser: Browser, address: str, width: int = 1280, scheme: str = "light") -> None:
    browser.open(Address("about:blank"), width, scheme)  # type: ignore[arg-type]
    browser.open(Address(address), width, scheme)  # type: ignore[arg-type]
    waited(browser, "iosimQuestion.done.then(() => true)")


def waited(browser: Browser, expression: str) -> None:
    """Wait for a promise, some seconds at a time."""
    browser.evaluate(
        f"window.over = false; ({expression}).then(() => {{ window.over = true; }}); 0"
    )
    for _ in range(600):
        if browser.evaluate("new Promise((done) => setTimeout(() => done(window.over), 200))"):
            return
    raise AssertionError("the page gave no answer in two minutes")


def settled(browser: Browser) -> None:
    """Wait until all parts are shown."""
    waited(
        browser,
        "(async () => { do { await new Promise((d) => setTimeout(d, 100)); } while ("
        "document.body.classList.contains('old')); })()",
    )


def choose(browser: Browser, name: str, value: str) -> None:
    browser.evaluate(
        f"(() => {{ const field = document.getElementById({name!r}); field.value = {value!r};"
        "field.dispatchEvent(new Event('change')); })()"
    )


def numbers(browser: Browser) -> dict[str, list[str]]:
    """The table of the page: what stands behind each title, the latest of equal titles."""
    rows = browser.evaluate(
        "[...document.querySelectorAll('#numbers tr')].map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    return {row[0]: row[1:] for row in rows}


WALKED = {"model": "llama-3.2-1b", "gpu": "l4", "context": "2k", "batch": 2, "price": 0.7}


def walk(browser: Browser, address: str) -> dict[str, Any]:
    """Pick a model, GPUs, a context and a batch, as a visitor does; the answers that the page holds."""
    opened(browser, f"{address}#model=gpt2&gpu=t4&context=64")
    choose(browser, "model", "llama-3.2-1b")
    choose(browser, "add", "l4")
    choose(browser, "context", "2k")
    choose(browser, "batch", "2")
    choose(browser, "price", "0.7")
    browser.evaluate("document.querySelector('#gpus button').click()")
    settled(browser)
    held = browser.evaluate("JSON.stringify([iosimQuestion.answers(), location.hash])")
    answers, link = json.loads(held)
    assert [*answers] == ["l4"]
    assert link[1:] == urlencode(
        [(name, WALKED[name]) for name in ("model", "context", "batch")]
        + [("kernel", "default"), ("price", "0.7"), ("gpu", "l4")]
    )
    l4: dict[str, Any] = answers["l4"]
    return l4


def as_printed(text: str) -> float:
    """A number of the page, of "1.234 ms" or "$0.5"."""
    number, _, unit = text.lstrip("$").replace(",", "").partition(" ")
    return float(number) * {"ms": 1e-3, "µs": 1e-6, "GB": 1e9, "MB": 1e6, "kB": 1e3}.get(unit, 1)


def same_as_the_commands(browser: Browser, answers: dict[str, Any], rel_tol: float) -> None:
    """That the page's answers are those of `iosim decode` and `iosim model`, and that its table shows them."""
    (point,) = printed(answers["memory"]["command"])["points"]
    assert answers["memory"]["cache_bytes"] == point["cache_bytes"]
    assert answers["memory"]["fits"] is point["fits"] is True
    (step,) = printed(answers["step"]["command"])["runs"]
    (prompt,) = printed(answers["prompt"]["command"])["runs"]
    for name, run in (("step", step), ("prompt", prompt)):
        assert math.isclose(answers[name]["time_s"], run["time_s"], rel_tol=rel_tol)
        assert answers[name]["hbm_read"] == run["totals"]["hbm"]["read"]
        assert answers[name]["l2_bytes"] == sum(run["totals"]["l2"].values())
    shown_numbers = numbers(browser)
    for title, value in (
        ("tokens per second", 2 / step["time_s"]),
        ("after", prompt["time_s"]),
        ("cache", point["cache_bytes"]),
        ("weights", point["weight_bytes"]),
        ("cost of a million tokens", 0.7 / 3600 * step["time_s"] / 2 * 1e6),
    ):
        assert math.isclose(as_printed(shown_numbers[title][0]), value, rel_tol=6e-3), title
    assert shown_numbers["fits"] == ["yes"]
    assert browser.evaluate("document.getElementById('commands').textContent").split("\n") == [
        answers[part]["command"] for part in ("memory", "step", "prompt")
    ]
