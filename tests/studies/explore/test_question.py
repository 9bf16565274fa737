"""The whole question that the explorer's page asks: each part is what the command that it names prints, to the last
digit; and a real browser walks the page, answered by the server and by the Python that its static folder carries."""

from __future__ import annotations

import json
import math
import runpy
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from effort import quick_every
from walking import (
    COLLISIONS,
    WALKED,
    Address,
    numbers,
    opened,
    printed,
    same_as_the_commands,
    settled,
    told,
    walk,
)

from iosim.commands import common
from iosim.commands.cli import parsed
from iosim.commands.explore import answer_question, answered, everything, question_setup
from iosim.studies.explore.page import attention_page, question_page
from iosim.studies.explore.question import PARTS, checked_rows
from iosim.studies.explore.server import server
from iosim.studies.requests import ExploreRequest

ROOT = Path(__file__).resolve().parents[3]
browsing = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
QUESTIONS: tuple[dict[str, Any], ...] = (
    {"model": "llama-3-8b", "gpu": "h100", "context": "4096", "batch": 1},
    {
        "model": "llama-3-8b",
        "gpu": "a100",
        "context": "8k",
        "batch": 4,
        "weights": "int4",
        "price": 1.5,
    },
    {"model": "llama-3.2-1b", "gpu": "l4", "context": 2000, "batch": 2, "cache": "fp8"},
    {"model": "qwen3-8b", "gpu": "mi300x", "context": "1k", "batch": 8, "weights": "fp8"},
    {"model": "gpt2-xl", "gpu": "t4", "context": 1000, "batch": 1, "kernel": "cutlass"},
)


# ---- the parts are those of the commands ----


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_fits_is_what_decode_says(question: dict[str, Any]) -> None:
    answer = told(question, "memory")
    (point,) = printed(answer["command"])["points"]
    for name in ("fits", "cache_bytes", "weight_bytes"):
        assert answer[name] == point[name], name
    attention = answer["attention"]
    for name in ("step_s", "tokens_per_s", "bound_by", "kernel"):
        assert attention[name] == point[name], name


@pytest.mark.parametrize("question", quick_every(QUESTIONS, 2))
@pytest.mark.parametrize("part", ["step", "prompt"])
def test_a_step_and_a_prompt_are_what_model_says(question: dict[str, Any], part: str) -> None:
    answer = told(question, part)
    run = next(
        run
        for run in printed(answer["command"])["runs"]
        if run["phase"] == ("decode" if part == "step" else "prefill")
    )
    assert answer["time_s"] == run["time_s"]
    assert [answer["hbm_read"], answer["hbm_write"]] == [*run["totals"]["hbm"].values()]
    assert answer["l2_bytes"] == sum(run["totals"]["l2"].values())
    assert [(p["part"], p["time_s"]) for p in answer["parts"]] == [
        (p["part"], p["time_s"]) for p in run["parts"]
    ]
    if part == "step":
        assert answer["tokens_per_s"] == question["batch"] / run["time_s"]
    if "price" in question:
        tokens = question["batch"] * (1 if part == "step" else 8192)
        cost = question["price"] / 3600 * run["time_s"] / tokens * 1e6
        assert math.isclose(answer["dollars_per_million"], cost)


def test_the_cache_in_few_bits_is_read_so_by_a_whole_model() -> None:
    wide, narrow = (
        told({"model": "llama-3-8b", "gpu": "h100", "context": "64k", "batch": 4} | more, "step")
        for more in ({"kernel": "flashinfer"}, {"cache": "fp8"})
    )
    cache_bytes = 4 * 65536 * 32 * 8 * 256  # sequences x tokens x layers x heads x (K and V)
    assert math.isclose(wide["hbm_read"] - narrow["hbm_read"], cache_bytes, rel_tol=0.01)
    # New keys and values are read in 16 bits and written in 8.
    written = [
        p["l2_bytes"]
        for told_of in (wide, narrow)
        for p in told_of["parts"]
        if p["part"] == "cache"
    ]
    assert math.isclose(written[1] / written[0], 3 / 4, rel_tol=0.01)


def test_a_bound_is_the_unit_that_alone_takes_half_of_the_time() -> None:
    """16 GB over 3.06 TB/s are more than half of 8.5 ms."""
    bound = told(QUESTIONS[0], "step")["bound"]
    assert bound["by"] == "hbm"
    assert 0.5 < bound["shares"]["hbm"] < 0.8
    assert told(QUESTIONS[0], "prompt")["bound"]["by"] == "tensor"
    assert told(QUESTIONS[2], "step")["bound"]["shares"]["tensor"] < 0.1


def test_kernels_say_their_tile_or_why_they_cannot_run() -> None:
    answer = told(QUESTIONS[0], "kernels")
    by_name = {row["name"]: row for row in answer["kernels"]}
    assert by_name["fa3"]["runs"]
    assert by_name["fa3"]["checked"].startswith("published times on h100")
    assert "h100-sxm" in by_name["ck"]["why"]
    assert not by_name["ck"]["runs"]
    assert [p["phase"] for p in answer["plans"]] == ["prefill", "decode"]
    for plan in answer["plans"]:
        printed_values = printed(
            f"iosim predict --gpu h100 --kernel {plan['kernel']} {plan['options']}"
        )
        kernel = printed_values["predictions"][0]["kernel"]
        assert plan["tile"] == f"{kernel['block_q']}x{kernel['block_k']}"
        assert (plan["order"], plan["direction"], plan["splits"]) == (
            *(kernel[name] for name in ("order", "direction", "splits")),
        )


def test_a_config_is_answered_as_its_preset() -> None:
    """The numbers of Llama 3 8B's config.json, dropped into the page."""
    from iosim.integrations.models.load import preset

    mine = QUESTIONS[0] | {"model": "my.json", "config": preset("llama-3-8b")["config"]}
    answer = told(mine, "step")
    assert answer["command"].startswith("iosim model --model my.json")
    assert answer["time_s"] == told(QUESTIONS[0], "step")["time_s"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "no question"),
        ("[]", "memory, step, prompt, kernels"),
        ('{"part": "all"}', "memory, step, prompt, kernels"),
        ('{"part": "step"}', "config.json"),
        ('{"part": "step", "model": "gpt2"}', "no question"),
        ('{"part": "step", "model": "lama", "gpu": "h100", "context": 1, "batch": 1}', "lama"),
        ('{"part": "step", "model": "gpt2", "gpu": "h101", "context": 9, "batch": 1}', "h101"),
        ('{"part": "step", "model": "gpt2", "gpu": "t4", "context": 1, "batch": 1}', "context"),
        ('{"part": "step", "model": "gpt2", "gpu": "t4", "context": "4k", "batch": "x"}', "batch"),
        (
            '{"part": "step", "model": "gpt2", "gpu": "t4", "context": 9, "batch": 1, "price": "x"}',
            "",
        ),
        (
            '{"part": "memory", "model": "llama-3-8b", "gpu": "mi300x", "context": 9, "batch": 1, "cache": "fp8"}',
            "--cache-dtype fp8",
        ),
        ('{"part": "step", "config": {"a": 1}, "gpu": "t4", "context": 9, "batch": 1}', ""),
    ],
)
def test_what_is_no_question_is_a_line(line: str, words: str) -> None:
    answer = answer_question(line)
    assert [*answer] == ["error"]
    assert words in answer["error"]
    assert "\n" not in answer["error"]


def test_what_was_checked_is_what_the_readme_says() -> None:
    """`python docs/generated/make_checked.py` makes it so."""
    code = runpy.run_path(str(ROOT / "docs" / "generated" / "make_checked.py"))
    assert len(checked_rows()) == len(code["rows"]()) >= 6
    assert code["TARGET"].read_text(encoding="utf-8") == code["written"]()


# ---- in a real browser ----


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    request = common.request(parsed(["explore"]), ExploreRequest, **everything(parsed(["explore"])))
    pages = {
        "/": question_page(question_setup("server")),
        "/attention.html": attention_page(request, "server"),
    }
    with server(0, pages, partial(answered, parsed=parsed)) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()


class TestServed:
    pytestmark = browsing

    def test_a_visitor_reads_what_the_commands_print(self, browser: Browser, served: str) -> None:
        answers = walk(browser, served)
        assert answers == {part: told(WALKED, part) for part in PARTS}
        same_as_the_commands(browser, answers, rel_tol=0.0)

    def test_gpus_stand_side_by_side_and_refusals_say_why(
        self, browser: Browser, served: str
    ) -> None:
        opened(
            browser, f"{served}#model=llama-3.2-1b&context=256&gpu=h100-sxm,mi355x,t4&kernel=fa3"
        )
        numbers_shown = numbers(browser)
        assert numbers_shown[""] == ["h100-sxm", "mi355x", "t4"]
        assert numbers_shown["fits"] == ["yes", "cannot run", "cannot run"]
        assert "mi355x: --kernel fa3" in browser.evaluate(
            "document.getElementById('told').textContent"
        )
        off = browser.evaluate(
            "[...document.querySelectorAll('#kernels tr.off')].map((row) => [0, 3].map((n) => row.children[n].textContent))"
        )
        assert "needs" in dict(off)["fa4"] or "does not run" in dict(off)["fa4"]
        disabled = browser.evaluate(
            "[...document.querySelectorAll('#kernel option:disabled')].map((option) => option.value)"
        )
        assert {*disabled} == {*dict(off)}

    def test_a_config_is_dropped_into_the_page(self, browser: Browser, served: str) -> None:
        from iosim.integrations.models.load import preset

        config = json.dumps(preset("gpt2")["config"])
        opened(browser, f"{served}#model=gpt2&context=128&gpu=t4")
        before = browser.evaluate("iosimQuestion.answers().t4.step.time_s")
        browser.evaluate(f"iosimQuestion.take(new File([{json.dumps(config)}], 'mine.json'))")
        settled(browser)
        assert browser.evaluate("iosimQuestion.answers().t4.step.time_s") == before
        assert "mine.json" in browser.evaluate("document.getElementById('verdict').textContent")
        link = browser.evaluate("location.href")
        opened(browser, link)
        assert browser.evaluate("iosimQuestion.answers().t4.step.time_s") == before
        assert "mine.json" in browser.evaluate("document.getElementById('commands').textContent")

    @pytest.mark.parametrize("width", quick_every([390, 1280], 2))
    @pytest.mark.parametrize("scheme", quick_every(["light", "dark"], 2))
    def test_words_are_apart_and_inside(
        self, browser: Browser, served: str, width: int, scheme: str
    ) -> None:
        opened(
            browser,
            f"{served}#model=gpt2&context=128&gpu=t4,a100-sxm-80gb,rtx-pro-6000-server",
            width,
            scheme,
        )
        assert browser.evaluate(COLLISIONS) == []
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) > 400) == (scheme == "light")
        exceptions = [
            e
            for e in browser.events
            if e["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")
        ]
        assert exceptions == []

    def test_the_link_to_the_replay_is_of_the_prompts_attention(
        self, browser: Browser, served: str
    ) -> None:
        opened(browser, f"{served}#model=gpt2&context=1000&gpu=t4")
        browser.open(Address(browser.evaluate("document.getElementById('replay').href")), 1280)  # type: ignore[arg-type]
        browser.evaluate("iosimPage.done")
        assert "Replayed" in browser.evaluate("document.getElementById('told').textContent")
        subject = browser.evaluate("document.getElementById('subject').textContent")
        assert "12 heads, 1,000 tokens, head_dim 64" in subject
        assert "causal" in subject
        assert "Replayed" in browser.evaluate("document.getElementById('told').textContent")


def test_another_kind_of_question_is_nobodys() -> None:
    assert answered("else", "x", parsed) is None
