"""Every command opens with its answer: the first line of the text is the JSON's `answer`, CSV has none, and its numbers
are the study's."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from effort import quick_every

from iosim.base.units import bytes_text, per_second_text, seconds_text
from iosim.commands.cli import main
from iosim.evidence.reproduce import Row, Verdict, reproduce
from iosim.evidence.reproduce import reproduced_answer as reproduced
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.studies.compare.face import grouped

pytestmark = pytest.mark.usefixtures("replays_once")

SMALL = ("--heads", "4", "--seq-len", "1k", "--head-dim", "64")
COMMANDS: dict[str, tuple[str, ...]] = {
    "compare": ("compare", "--kernel", "naive,fa2", *SMALL),
    "tiles": ("tiles", *SMALL),
    "explain": ("explain", "--gpu", "h200", *SMALL),
    "trace": ("trace", "--gpu", "h200", *SMALL),
    "decode": ("decode", "--context", "1k,4k", "--gpu", "h100"),
    "ring": ("ring", "--num-gpus", "4", "--causal", "--heads", "8", "--seq-len", "8k"),
    "train-memory": ("train-memory", "--gpu", "l4", "--layers", "2", "--seq-len", "512"),
    "frontier": ("train-memory", "--frontier", "layers", "--layers", "2,4", "--seq-len", "1k,4k"),
    "formula": ("formula", "fa2"),
    "profiles": ("profiles", "show", "h200"),
    "kernels": ("kernels", "show", "fa2"),
    "reproduce": ("reproduce", "--section", "A"),
}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def outputs() -> dict[str, tuple[str, dict[str, Any]]]:
    """Text and JSON of a command, made once."""
    return {}


def both(
    capsys: pytest.CaptureFixture[str], outputs: dict[str, Any], name: str
) -> tuple[str, dict[str, Any]]:
    if name not in outputs:
        words = COMMANDS[name]
        outputs[name] = run(capsys, *words), json.loads(run(capsys, *words, "--format", "json"))
    return outputs[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_first_line_is_the_answer_of_the_json(
    capsys: pytest.CaptureFixture[str], outputs: dict[str, Any], name: str
) -> None:
    text, data = both(capsys, outputs, name)
    first, _ = text.split("\n\n", 1)
    assert first == data["answer"]
    assert list(data)[:2] == ["schema", "answer"]
    assert re.search(r"\d", first)
    assert first.endswith(".")


@pytest.mark.parametrize(
    "name", quick_every((n for n in COMMANDS if n not in ("explain", "kernels")), 3)
)
def test_csv_has_no_answer(
    capsys: pytest.CaptureFixture[str], outputs: dict[str, Any], name: str
) -> None:
    _, data = both(capsys, outputs, name)
    assert data["answer"] not in run(capsys, *COMMANDS[name], "--format", "csv")


def test_a_comparison_states_the_bytes_of_both(
    capsys: pytest.CaptureFixture[str], outputs: dict[str, Any]
) -> None:
    text, data = both(capsys, outputs, "compare")
    answer, under = text.split("\n\n")[:2]
    best = next(row for row in data["rows"] if row["kernel"] == "fa2")
    assert bytes_text(best["hbm_read_bytes"] + best["hbm_write_bytes"]) in answer
    for row in data["rows"]:
        assert bytes_text(row["l2_read_bytes"] + row["l2_write_bytes"]) in under
        assert seconds_text(row["time_s"]) in answer


def test_a_ranking_names_its_first_tile_and_how_many_fit(
    capsys: pytest.CaptureFixture[str], outputs: dict[str, Any]
) -> None:
    text, data = both(capsys, outputs, "tiles")
    best = data["tiles"][0]
    library = data["library"][0]
    answer = data["answer"]
    assert f"{best['block_q']}x{best['block_k']} with {best['warps']} warps" in answer
    assert f"of {len(data['tiles'])} tiles that fit" in answer
    assert f"{len(data['rejected'])} others do not fit" in text
    assert seconds_text(best["time_s"]) in answer
    assert f"{library['kernel']} {library['block_q']}x{library['block_k']}, takes" in answer


def test_an_explanation_names_the_regime_and_the_best_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (
        "explain",
        "--gpu",
        "h200",
        "--kernel",
        "fa2",
        "--heads",
        "8",
        "--seq-len",
        "16k",
        "--head-dim",
        "128",
        "--causal",
        "--dtype",
        "bf16",
    )
    data = json.loads(run(capsys, *words, "--format", "json"))
    explanation = data["explanations"][0]
    answer = data["answer"]
    assert bytes_text(explanation["hbm"]["read"]) in answer
    facts = explanation["launches"][0]
    best = explanation["trials"][0]
    assert facts["regime"].startswith("drift")
    assert "CTAs drift apart" in answer
    assert f"With '{best['change']}' fa2 would read" in answer
    text = run(capsys, *words)
    assert bytes_text(facts["capacity_bytes"]) in text
    assert bytes_text(best["hbm_bytes"]) in text


def test_a_trace_states_what_was_asked_and_what_missed(
    capsys: pytest.CaptureFixture[str], outputs: dict[str, Any]
) -> None:
    _, data = both(capsys, outputs, "trace")
    rows = data["traces"][0]["tensors"]
    asked_bytes, missed = (sum(r[k] for r in rows) for k in ("asked_bytes", "missed_bytes"))
    assert f"asks {bytes_text(asked_bytes)} of the L2" in data["answer"]
    assert f"{bytes_text(missed)} from HBM" in data["answer"]
    assert f"{100 * (1 - missed / asked_bytes):.1f} %" in data["answer"]


def test_decoding_states_the_longest_context(
    capsys: pytest.CaptureFixture[str], outputs: dict[str, Any]
) -> None:
    text, data = both(capsys, outputs, "decode")
    last = data["points"][-1]
    assert data["answer"].startswith(
        f"At {last['context']:,} tokens of context {last['kernel']} on "
    )
    step = f"takes {seconds_text(last['step_s'])} per step of one token"
    assert f"{step}: {last['tokens_per_s']:,.0f} tokens per second" in data["answer"]
    assert bytes_text(last["hbm_read_bytes_per_token"]) in text


def test_a_batchs_step_and_rate_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    """A token of a batch of 64 is not made in a 64th of the step."""
    line = ["decode", "--batch", "64", "--context", "1k", "--gpu", "h100"]
    assert main(line) == 0
    text = capsys.readouterr().out
    assert main([*line, "--format", "json"]) == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    step = seconds_text(point["step_s"])
    rate = per_second_text(point["tokens_per_s"])
    assert f"takes {step} per step of 64 tokens: {rate} tokens per second" in text.splitlines()[0]
    head, row = text.splitlines()[2:4]
    assert head.split()[3:5] == ["step", "tokens/s"]
    assert f"{step} {rate}" in " ".join(row.split())
    assert seconds_text(point["s_per_token"]) not in text
    assert "a token" not in text


def test_a_ring_names_the_fastest(
    capsys: pytest.CaptureFixture[str], outputs: dict[str, Any]
) -> None:
    _, data = both(capsys, outputs, "ring")
    best = min(data["results"], key=lambda r: r["time_s"])
    assert data["answer"].startswith(
        f"{best['name']} is fastest of {len(data['results'])} methods on 4 x "
    )
    assert seconds_text(best["time_s"]) in data["answer"]


@pytest.mark.slow
def test_training_states_the_peak_and_whether_it_fits(
    capsys: pytest.CaptureFixture[str], outputs: dict[str, Any]
) -> None:
    _, data = both(capsys, outputs, "train-memory")
    memory = data["training"][0]["memory_bytes"]
    assert (
        f"{bytes_text(memory['peak'])} of {bytes_text(memory['capacity'])} at the peak"
        in data["answer"]
    )
    assert " fits on l4" in data["answer"]
    naive = ("train-memory", "--gpu", "l4", "--attention", "naive", "--format", "json", "--seq-len")
    too_long = json.loads(run(capsys, *naive, "32k"))
    assert "does not fit on l4" in too_long["answer"]
    longest = re.search(r"Up to ([\d,]+) tokens fit", too_long["answer"])
    assert longest
    n = int(longest[1].replace(",", ""))
    at, beyond = (
        json.loads(run(capsys, *naive, str(k)))["training"][0]["fits"] for k in (n, n + 64)
    )
    assert (at, beyond) == (True, False)


def test_a_map_of_what_fits_states_both_ends(
    capsys: pytest.CaptureFixture[str], outputs: dict[str, Any]
) -> None:
    _, data = both(capsys, outputs, "frontier")
    limits = data["frontier"]
    for value, longest in zip(limits["values"], limits["longest_seq_len"], strict=True):
        assert f"{longest:,} tokens at {value} layers" in data["answer"]


def test_a_formula_states_its_leading_term_or_its_number(
    capsys: pytest.CaptureFixture[str], outputs: dict[str, Any]
) -> None:
    _, data = both(capsys, outputs, "formula")
    assert data["formula"]["leading"]["text"] in data["answer"]
    sized = json.loads(
        run(
            capsys,
            "formula",
            "fa2",
            "--batch",
            "1",
            "--heads",
            "32",
            "--seq-len",
            "4096",
            "--head-dim",
            "128",
            "--dtype",
            "fp16",
            "--format",
            "json",
        )
    )
    moved_bytes = [sized["formula"]["totals"][way]["bytes"] for way in ("read", "write")]
    assert f"moves {bytes_text(sum(moved_bytes))} between SMs and L2" in sized["answer"]


# Grouped heads


def test_grouped_heads_change_no_bytes_of_a_kernel_that_reads_keys_a_query_head() -> None:
    p = predict(AttentionProblem(heads=8, kv_heads=2, seq_q=2048, head_dim=64), "fa2", "a100")
    alone = predict(p.problem.with_(kv_heads=8), "fa2", "a100")
    assert p.total("l2") == alone.total("l2")
    text = grouped(p)
    assert text.startswith(
        "GQA 4:1 does not change the SM<->L2 bytes of fa2: each query head reads K and V again"
    )
    before, after = (
        int(prediction.traffic.total("hbm", "read", tensor="K")) for prediction in (alone, p)
    )
    assert text.endswith(
        f"what HBM reads of K falls from {bytes_text(before)} to {bytes_text(after)}."
    )


def test_grouped_heads_that_are_packed_share_what_is_read() -> None:
    p = predict(
        AttentionProblem(heads=32, kv_heads=8, seq_q=1, seq_k=8192, head_dim=128), "fa3", "h100"
    )
    assert "lowers the SM<->L2 bytes of fa3" in grouped(p)


# Published numbers


def test_a_mistake_is_none_of_the_agreements_whatever_its_ratio() -> None:
    wrong = Row("G", "a claim", 2.0, 2.0, "MB", "1 + 1", mistake="it counts twice")
    right = Row("G", "another", 2.0, 2.0, "MB", "1 + 1")
    assert (wrong.ratio, wrong.verdict, right.verdict) == (1.0, Verdict.MISTAKE, Verdict.AGREES)
    assert "1 within 1 %" in reproduced([wrong, right])
    assert "1 a mistake of the source" in reproduced([wrong, right])


@pytest.mark.parametrize(
    ("computed", "verdict"),
    [
        (1.01, Verdict.AGREES),
        (0.99, Verdict.AGREES),
        (1.011, Verdict.NEAR),
        (0.8, Verdict.NEAR),
        (0.79, Verdict.OFF),
        (None, Verdict.OPEN),
    ],
)
def test_verdicts_by_how_far_off(computed: float | None, verdict: Verdict) -> None:
    assert Row("A", "c", 1.0, computed, "x", "").verdict is verdict


def test_what_llm_viewer_says_of_flash_is_a_mistake_with_the_right_number_beside_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [r for r in reproduce(["G"]) if r.claim.startswith("LLM-Viewer, flash")]
    assert len(rows) == 3
    for r in rows:
        assert r.ratio == pytest.approx(1, abs=0.001)
        assert r.verdict is Verdict.MISTAKE
    assert (
        "151.0 MB between SMs and L2, and 33.6 MB at HBM" in rows[0].mistake
    )  # 128-row tiles; Q, K, V and O once
    text = run(capsys, "reproduce", "--section", "G")
    lines = [
        line for line in text.splitlines() if "LLM-Viewer, flash, N" in line and "276.8" in line
    ]
    assert all("1.000 (mistake)" in line for line in lines)
    assert lines


def test_sections_are_listed_by_what_they_are_about(capsys: pytest.CaptureFixture[str]) -> None:
    listed = run(capsys, "reproduce", "--list").splitlines()
    assert [line[:2] for line in listed] == ["A.", "B.", "C.", "D.", "E.", "F.", "G."]
    assert "LLM-Viewer" in listed[-1]
