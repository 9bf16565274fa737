"""The docs: every command on a page runs, every output that a page shows is what its command prints, every link leads
somewhere, and every file that a page or a message names is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from scripts import ROOT, load_script

import iosim
from iosim.commands.cli import main

DOCS = ROOT / "docs"

if not DOCS.is_dir():
    pytest.skip("iosim runs from an install without its docs", allow_module_level=True)

PAGES = sorted(DOCS.rglob("*.md"))
renew = load_script("docs/renew.py")
README = ROOT / "README.md"
FOR_AGENTS = [
    path for path in (ROOT / "AGENTS.md", *ROOT.glob("skills/*/SKILL.md")) if path.is_file()
]
FENCE = re.compile(r"^```(\w*)[ \w]*\n(.*?)^```$", re.S | re.M)
FIGURE = re.compile(r"(?<![\w.,])\d[\d,.]* (?:[kMGT]?B|times|us|ms)\b")


def title(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of the fenced blocks of a page."""
    return FENCE.findall(page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """What a link may name of a page after #."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.slow
@pytest.mark.usefixtures("kept_replays")
@pytest.mark.parametrize(
    "page",
    [README, *(p for p in PAGES if any(kind in ("sh", "python") for kind, _ in blocks(p)))],
    ids=title,
)
def test_commands_run_and_print_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    every = page != README  # whose commands have a test each
    assert renew.renewed(text, every=every) == text, "python docs/renew.py renews it"


@pytest.mark.parametrize("page", [README, *PAGES], ids=title)
def test_outputs_have_their_commands_and_prose_says_what_they_say(page: Path) -> None:
    """Amounts of four digits are printed ones, unlike measured ones, which are written in three: a block holds them."""
    kinds = [kind for kind, _ in blocks(page) if kind in ("sh", "python", "text")]
    assert not kinds or kinds[0] != "text"
    if page.parent.name == "generated" or "text" not in kinds:
        return
    outputs = " ".join(text for _, text in blocks(page))
    prose = re.sub(r"^\|.*$", "", FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.M)
    figures = [figure for figure in FIGURE.findall(prose) if sum(map(str.isdigit, figure)) > 3]
    assert [figure for figure in figures if figure not in outputs] == []


def test_what_pages_say_of_levels_holds() -> None:
    """From a cold L2 no tensor is read less than once nor more often than without an L2; writes that wait in the L2 are
    fewer than the compulsory ones. The tutorial's first prediction reads its inputs as often as the page says."""
    first = iosim.predict(
        kernel="fa2", gpu="h100", heads=32, seq_len=4096, head_dim=128, causal=True
    )
    waiting = iosim.predict(kernel="fa2", gpu="h200", heads=8, seq_len=1024, head_dim=128)
    for prediction in (first, waiting):
        assert (
            prediction.hbm_bounds.compulsory_read
            <= prediction.hbm.read
            <= prediction.hbm_bounds.no_l2_read
        )
    assert waiting.hbm.write < waiting.hbm_bounds.compulsory_write
    page = " ".join((DOCS / "reading-output.md").read_text(encoding="utf-8").split())
    assert (
        "the reads of tensors lie between *compulsory* and *with no L2*; the writes may be fewer"
        in page
    )
    tutorial = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    often = first.hbm.read / first.hbm_bounds.compulsory_read
    assert f"HBM delivers the inputs {often:.1f} times over" in tutorial


GATE = DOCS / "how-to" / "gate.md"


def test_the_workflow_and_the_hook_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their commands hold what the page's first commands wrote."""
    yaml = pytest.importorskip("yaml")
    workflow, hooks = (yaml.safe_load(text) for kind, text in blocks(GATE) if kind == "yaml")
    (hook,) = hooks["repos"][0]["hooks"]
    assert re.search(hook["files"], "kernels/mine.toml")
    steps = [step["run"] for step in workflow["jobs"]["bytes"]["steps"] if "run" in step]
    console = [
        line.removeprefix("$ ")
        for kind, text in blocks(GATE)
        if kind == "console"
        for line in text.splitlines()
    ]
    commands = [line for line in (*steps, hook["entry"], *console) if line.startswith("iosim ")]
    assert len(commands) == 3
    monkeypatch.chdir(tmp_path)
    for line in (
        *next(text for kind, text in blocks(GATE) if kind == "sh").splitlines(),
        *commands,
    ):
        assert main(shlex.split(line)[1:]) == 0, line


PAGE = """One says two.

```sh
iosim kernels list
```

```text part
gone  flash  FlashAttention-7, as PyTorch builds it for its flash backend   80  -  fp16 bf16  bytes counted on h100-sxm
```

```python
for n in range(3): print("row", n)
```

```text
row 1
```
"""


def test_outputs_are_renewed_whole_or_in_part() -> None:
    page = renew.renewed(PAGE)
    assert page.startswith("One says two.\n\n```sh\niosim kernels list\n```\n\n```text part\nfa2 ")
    assert page.endswith("```text\nrow 0\nrow 1\nrow 2\n```\n")
    assert renew.renewed(page) == page


def test_a_part_that_is_printed_no_more_is_told() -> None:
    with pytest.raises(renew.Unlike, match="a sentence that nothing prints"):
        renew.renewed(
            "```sh\niosim models list\n```\n```text part\na sentence that nothing prints\n```\n"
        )
    with pytest.raises(RuntimeError, match="iosim models show nobody"):
        renew.renewed("```sh\niosim models show nobody\n```\n```text\n```\n")


def test_lines_of_a_part_keep_their_order_and_their_digits() -> None:
    kept_rows = ["row 2 has 3.1 GB", "", "row 4 has 5 GB"]
    lines = ["row 1 has 2 GB", "row 2 has 3 GB", "row 3 has 4 GB", "row 4 has 5.5 GB", "in all 9"]
    assert renew.alike(kept_rows, lines) == ["row 2 has 3 GB", "", "row 4 has 5.5 GB"]


@pytest.mark.parametrize("page", [*PAGES, README, *FOR_AGENTS], ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([\w-]+))?\)", text):
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), target
        assert not anchor or anchor in anchors(place), f"{target}#{anchor}"


@pytest.mark.parametrize("page", [*PAGES, README, *FOR_AGENTS], ids=lambda p: p.name)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    if page.parent.name == "generated":
        return
    text = page.read_text(encoding="utf-8")
    for name in re.findall(
        r"(?<!skills/)(?<!\.config/)(?:iosim|docs|kernels|experiments|benchmarks|examples|tests|reports)/[\w./-]*\w",
        text,
    ):
        assert (ROOT / name).exists(), name


EVERYWHERE = [
    p
    for folder in ("docs", "examples", "experiments", "kernels", "benchmarks")
    for p in (ROOT / folder).rglob("*.md")
]


def sentences(text: str) -> list[str]:
    """Of prose, items and cells; a link counts by its text, code as one word."""
    text = re.sub(r"^(    |#).*$", "", FENCE.sub("", text), flags=re.M)
    text = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", text))
    text = re.sub(r"^\s*([-*]|\d+\.) |\|", "\n\n", text, flags=re.M)
    return [
        sentence
        for part in re.split(r"\n\s*\n", text)
        for sentence in re.split(r"(?<=[.!?])[*)]*\s+", part)
    ]


@pytest.mark.parametrize("page", [p for p in EVERYWHERE if p.parent.name != "generated"], ids=title)
def test_a_sentence_is_read_once(page: Path) -> None:
    assert [
        sentence
        for sentence in sentences(page.read_text(encoding="utf-8"))
        if len(sentence.split()) > 40
    ] == []


def test_long_sentences_are_found() -> None:
    item = "- **One** two `three four` [five six](seven.md).\n\n```sh\nnot counted\n```\n| a cell. b | c |\n"
    assert [len(sentence.split()) for sentence in sentences(item) if sentence.strip()] == [
        5,
        2,
        1,
        1,
    ]


def test_pages_that_code_names_are_there() -> None:
    for folder in ("iosim", "benchmarks", "kernels", "examples", "tests", "reports"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
                assert (ROOT / name).exists(), f"{path.name}: {name}"


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert page.name == "README.md" or f"({page.relative_to(DOCS)})" in index, page.name
