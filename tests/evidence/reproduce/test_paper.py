"""Published numbers: every expected value below is written out as arithmetic, apart from the models that compute it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import reproduced
from effort import slow
from refusals import refused

from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.evidence.reproduce import Row, paper, reproduce, sections

KEYS = [
    "section",
    "claim",
    "claimed",
    "computed",
    "unit",
    "ratio",
    "arithmetic",
    "note",
    "mistake",
    "verdict",
]

SECTIONS = ("AG", slow("BDF"))
"""Those that take seconds, together; C and E take minutes, and their own files hold them."""

# Figure 2: 64 sequences x 16 heads, 1,024 tokens, d 64, two bytes.
U = 64 * 16 * 1024 * 64 * 2  # an N x d tensor: 0.134 GB
NN = 64 * 16 * 1024 * 1024 * 2  # a pass over an N x N tensor: 2.147 GB


def find(*words: str) -> Row:
    return reproduced.find("ABG", *words)


@pytest.mark.parametrize("letters", SECTIONS)
def test_sections_and_row_type(letters: str) -> None:
    assert [s.letter for s in sections()][:2] == ["A", "B"]
    assert {r.section for r in reproduced.rows(letters)} == set(letters)
    for r in reproduced.rows(letters):
        assert r.arithmetic
        assert (r.ratio is None) == (not r.claimed or r.computed is None)  # nothing to divide by
        if r.computed is None:
            assert r.note, "a row that cannot be reproduced says why"


def test_ratio_is_computed_over_claimed() -> None:
    assert Row("A", "c", 4.0, 5.0, "GB", "").ratio == 1.25
    assert Row("A", "c", None, 5.0, "GB", "").ratio is None
    assert Row("A", "c", 4.0, None, "GB", "").ratio is None
    assert Row("A", "c", 0.0, 1.0, "GB", "").ratio is None


# --- A paper's table --------------------------------------------------------------------------------------------------

PAPER = """
section = "Z"
title = "a paper"
[defaults]
gpu = "a100"
heads = 32
head_dim = 128
[kernels.tiled]
kernel = "flash"
tile = [128, 64]
writes_lse = false
[[claim]]
claim = "{word} at {seq_q:,}"
each = [{ seq_q = [1024, 4096], published = [1.0, 2.0] }, { word = ["a", "b"] }]
claimed = "published"
unit = "MB"
kernel = "tiled"
quantity = "moved"
arithmetic = "{of.kernel.tile}, {of.moved.GB:.3f} GB"
[[claim]]
kernel = "tiled"
quantity = "moved"
[[claim.row]]
claim = "over the compulsory bytes"
unit = "times"
seq_q = 1024
over = { quantity = "compulsory" }
[[claim.row]]
claim = "the most, at {seq_q}"
unit = "MB"
whole = true
among = { seq_q = [512, 1024, 256] }
choose = "max"
"""


def rows_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> list[Row]:
    (tmp_path / "z.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(paper, "PLACE", tmp_path)
    return list(next(iter(sections.__wrapped__())).rows())


def test_a_table_is_read_row_by_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    u = 32 * 1024 * 128 * 2
    rows = rows_of(monkeypatch, tmp_path, PAPER)
    assert [r.claim for r in rows] == [
        "a at 1,024",
        "b at 1,024",
        "a at 4,096",
        "b at 4,096",
        "over the compulsory bytes",
        "the most, at 1024",
    ]
    # Q and O once, K and V once a block of 128 queries
    assert [r.computed for r in rows[::2][:2]] == [
        (2 + 2 * 8) * u / 1e6,
        (2 + 2 * 32) * 4 * u / 1e6,
    ]
    assert [r.claimed for r in rows] == [1.0, 1.0, 2.0, 2.0, None, None]
    assert rows[0].arithmetic == f"128x64, {18 * u / 1e9:.3f} GB"
    assert rows[4].computed == 18 / 4
    assert rows[5].computed == 18 * u // 10**6


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ('quantity = "moved"\narith', 'quantitty = "moved"\narith', "did you mean quantity"),
        ("head_dim = 128", "head_dims = 128", "did you mean head_dim"),
        ("published = [1", "publish = [1", "publish"),
        ("whole = true", "wholes = true", "did you mean whole"),
    ],
)
def test_a_misspelt_key_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, right: str, wrong: str, message: str
) -> None:
    assert right in PAPER
    with pytest.raises(InputError, match=message):
        rows_of(monkeypatch, tmp_path, PAPER.replace(right, wrong))


def test_an_unknown_section_is_refused() -> None:
    with pytest.raises(InputError, match=r"section 'Z' is not known; accepted: A, B"):
        reproduce(["z"])


# --- A ----------------------------------------------------------------------------------------------------------------


def test_article_numbers() -> None:
    assert find("score matrix").computed == 1.0  # 32 x 4096^2 x 2 bytes = 2^30
    assert find("over 4 GB").computed == 4 + 4 / 32  # (4 N^2 + 4 N d) x 32 x 2: 4 GiB + 4 x 32 MiB
    assert find("traffic at 4,096", "standard over flash").computed == 1 + 4096 / 128
    assert find("traffic at 16,384", "standard over flash").computed == 1 + 16384 / 128
    assert find("memory at 4,096").computed == 1 + 4096 / (4 * 128)
    assert (
        find("shared memory of a CTA").computed == (4 * 128 * 128 * 2 + 2 * 128 * 4) / 1024 == 129
    )


@pytest.mark.parametrize(("tokens", "claimed"), [(4096, 33), (16384, 129)])
def test_the_ratio_holds_at_hbm_and_not_between_sms_and_l2(tokens: int, claimed: int) -> None:
    hbm = find(f"traffic at {tokens:,}", "predicted at HBM").computed
    l2 = find(f"traffic at {tokens:,}", "predicted at SM<->L2").computed
    assert hbm == pytest.approx(claimed, rel=0.01)
    assert l2 is not None
    assert (
        2 < l2 < 4
    )  # flash reads K and V once a block of 128 queries: N/128 x 2 u against 4 N/d u and more
    assert "re-read" in find(f"traffic at {tokens:,}", "standard over flash").note


# --- B ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "passes", "vectors", "printed"),
    [
        (("to the letter", "NeurIPS"), 11, 12, 25.2),
        (("mask in forward and backward",), 15, 12, 33.8),
        (("layout copies", "NeurIPS"), 15, 30, 36.2),
        (("1-byte mask",), 16, 12, 36.0),
        (("layout copies", "v2"), 16, 30, 38.4),
        (("in forward only",), 18, 12, 40.27),
    ],
)
def test_standard_of_figure_2(
    words: tuple[str, ...], passes: int, vectors: int, printed: float
) -> None:
    computed = find("standard, GB", *words).computed
    assert computed == (passes * NN + vectors * U) / 1e9
    assert computed == pytest.approx(printed, abs=0.05)


@pytest.mark.parametrize(
    ("words", "vectors", "printed"),
    [
        ("O read once in backward", 35, 4.70),
        ("not read at the first", 33, 4.43),
        ("to the letter", 38, 5.10),
        ("fp32 temporaries", 45, 6.04),
    ],
)
def test_flash_of_figure_2(words: str, vectors: int, printed: float) -> None:
    row = find("flash, GB", words)
    assert row.computed == vectors * U / 1e9
    assert row.computed == pytest.approx(printed, abs=0.005)
    assert "not a proof" in row.note


def test_operations_are_the_matrix_work_and_cannot_be_reproduced() -> None:
    pairs = 64 * 16 * 1024 * 1024
    assert find("operations, standard").computed == 6 * 2 * pairs * 64 / 1e9  # 824.6
    assert find("operations, flash").computed == 7 * 2 * pairs * 64 / 1e9  # 962.1
    assert "cannot be reproduced" in find("operations, flash").note


STANDARD_MIB = {128: 36, 256: 104, 512: 336, 1024: 1184, 2048: 4416, 4096: 17024}
FLASH_MIB = {
    128: 22,
    256: 44,
    512: 104,
    1024: 209,
    2048: 418,
    4096: 836,
    8192: 1672,
    16384: 3344,
    32768: 6688,
    65536: 13376,
}


def test_memory_table_is_exact() -> None:
    for n, printed in STANDARD_MIB.items():
        assert 128 * (4 * n * n + 10 * n * 64) * 2 // 2**20 == printed
        assert find("memory, standard", f"N = {n:,}").computed == printed
    for n, printed in FLASH_MIB.items():
        assert 128 * ((13 if n > 256 else 11) * n * 64 * 2 + 8 * n) // 2**20 == printed
        assert find("memory, flash", f"N = {n:,}").computed == printed
    assert find("first N that does not fit").computed == 8192


def test_every_published_run_time_stands_beside_a_prediction() -> None:
    times = [r for r in reproduced.rows("ABG") if r.claim.startswith("run time")]
    assert len(times) == 7 + 7 + 6 + 6
    assert all(r.computed is not None and r.computed > 0 and r.ratio is not None for r in times)


def test_h200_counters_stand_beside_the_estimate() -> None:
    assert (
        find("measured on an H200, flash", "read").claimed == 2.02091
    )  # h200_chains.csv, flash_fwdbwd, 64 x 16
    assert find("measured on an H200, naive, fwd+bwd", "read").ratio == pytest.approx(1, rel=0.02)


# --- G ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1024, 4096, 16384])
def test_other_tools(tokens: int) -> None:
    n = f"N = {tokens:,}"
    u = 32 * tokens * 128 * 2
    nn = 32 * tokens * tokens * 2
    assert find("compulsory", n).computed == 4 * u / 1e6
    assert find("LLM-Viewer, no flash", n).computed == (4 * nn + 4 * u) / 1e6
    assert find("LLM-Viewer, flash", n).computed == (tokens // 128 * 2 * u + u + 2 * nn) / 1e6
    assert find("GenZ, everything off chip", n).computed == (2 * nn + 4 * u) / 1e6
    assert find("AccelForge", "96 KiB", n).computed == (2 + 2 * tokens // 128) * u / 1e6
    assert find("AccelForge", "164 KiB", n).computed == (2 + 2 * tokens // 256) * u / 1e6
    assert find("AccelForge", "40 MiB", n).computed == 4 * u / 1e6
    # Ours adds one fp32 log-sum-exp a row to the oracle's bytes.
    assert (
        find("iosim, fa2, SM<->L2", n).computed
        == ((2 + 2 * tokens // 128) * u + 32 * tokens * 4) / 1e6
    )
    for tool in (
        "LLM-Viewer, no flash",
        "LLM-Viewer, flash",
        "GenZ, everything",
        "GenZ, flash",
        "AccelForge",
        "compulsory",
    ):
        rows = [r for r in reproduced.rows("G") if r.claim.startswith(tool) and r.claim.endswith(n)]
        assert rows
        assert all(
            r.ratio == pytest.approx(1, abs=0.0016) for r in rows
        )  # the tables round to a tenth of a MB


def test_what_cannot_be_reproduced_says_so() -> None:
    assert "cannot be reproduced" in find("LLMCompassPlus, flash causal", "N = 4,096").note


# --- The command ------------------------------------------------------------------------------------------------------


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--section", "A", "--section", "g", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data) == ["schema", "answer", "rows"]
    assert data["schema"] == 1
    assert all(list(r) == KEYS for r in data["rows"])
    assert {r["section"] for r in data["rows"]} == {"A", "G"}
    assert any(r["ratio"] is None for r in data["rows"])


def test_csv_table_and_markdown_hold_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    texts = {}
    for form in ("csv", "table", "md"):
        assert main(["reproduce", "--section", "A", "--format", form]) == 0
        texts[form] = capsys.readouterr().out
    claims = [r.claim for r in reproduced.rows("A")]
    assert [r["claim"] for r in csv.DictReader(io.StringIO(texts["csv"]))] == claims
    for form in ("table", "md"):
        assert all(claim in texts[form] for claim in claims)


def test_bad_section_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["reproduce", "--section", "Q"], "--section 'Q'")
