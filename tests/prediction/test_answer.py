"""The answer in one sentence: its numbers are those of the JSON, its reason is the one that the numbers have, and how
far to trust it stands beside them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iosim.base.units import bytes_text, seconds_text
from iosim.catalog.libraries import Overrides
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.prediction.answer import against, answer, excess, reason, why
from iosim.prediction.confidence import basis, confidence
from iosim.prediction.predictor import predict
from iosim.prediction.result import Prediction
from iosim.prediction.reuse import partition_bytes
from iosim.problem.attention import AttentionProblem
from iosim.show.page import markdown
from iosim.studies.compare import sentences
from iosim.studies.report import CaseGrid, Report, as_page, build

pytestmark = pytest.mark.usefixtures("replays_once")

BYTES = re.compile(r"\d[\d,.]* (?:[kMGT]B|B)\b")


def problem(tokens: int = 2048, **values: object) -> AttentionProblem:
    return AttentionProblem(**{"heads": 8, "seq_q": tokens, "head_dim": 64} | values)  # type: ignore[arg-type]


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    capsys.readouterr()
    assert main([*words, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def byte_numbers(value: object) -> set[str]:
    """Every whole number of a JSON value, as a person reads bytes."""
    if isinstance(value, dict):
        return {text for item in value.values() for text in byte_numbers(item)}
    if isinstance(value, list):
        return {text for item in value for text in byte_numbers(item)}
    return (
        {bytes_text(value)}
        if isinstance(value, int | float) and not isinstance(value, bool)
        else set()
    )


# Predictions


@settings(deadline=None)
@given(
    kernel=st.sampled_from(["naive", "fa2", "cutlass"]),
    tokens=st.sampled_from([64, 300, 1024, 2048]),
    mask=st.sampled_from(["none", "causal"]),
    kv_heads=st.sampled_from([2, 8]),
    gpu=st.sampled_from(["a100", "h200", "l4"]),
)
def test_the_bytes_and_the_factor_are_those_of_the_prediction(
    kernel: str, tokens: int, mask: str, kv_heads: int, gpu: str
) -> None:
    p = predict(problem(tokens, mask=mask, kv_heads=kv_heads), kernel, gpu)
    sentence = answer([p])
    read, least = p.hbm_payload.read, p.hbm_bounds.compulsory_read
    assert sentence.startswith(
        f"{p.kernel.name} on {p.profile.name} in fp16 reads {bytes_text(p.hbm.read)} from HBM ("
    )
    assert f" in {seconds_text(p.time_s)} (boost clock), bound by {p.bound_by}. " in sentence
    stated = re.search(r"HBM \(([\d.,]+)x the compulsory", sentence)
    assert (stated is None) == (read <= 1.05 * least)
    if stated:
        assert float(stated[1].replace(",", "")) == pytest.approx(read / least, rel=0.006)
    assert sentence.endswith(".")
    assert "\n" not in sentence


WARM = [
    "predict --gpu h100 --kernel fa2 --seq-len 512",
    "predict --gpu h100 --kernel fa2,cudnn --seq-len 512",
    "predict --gpu h200 --kernel cudnn --heads 32 --kv-heads 8 --seq-len 1 --seq-len-k 8k",
    "predict --gpu h100 --kernel fa2 --seq-len 512 --method bounds",
    "explain --gpu h100 --kernel fa2 --seq-len 512",
    "compare --gpu h100 --kernel naive,fa2 --seq-len 512",
    "predict --gpu h100 --model llama-3-8b --seq-len 512",
]


@pytest.mark.parametrize("line", WARM)
def test_a_warm_call_that_reads_less_is_not_said_to_read_the_compulsory_bytes(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cold, warm = (
        as_json(capsys, *line.split(), "--l2", start)["answer"] for start in ("cold", "warm")
    )
    sentence = re.compile(
        r"HBM \((the )?compulsory(?! [\d.]+ .B lie)|\(compulsory\) and|MB, the compulsory bytes\)"
    )
    assert sentence.search(cold)
    assert "warm" not in cold
    assert not sentence.search(warm), warm
    assert (
        "warm L2" in warm or "left the rest in the L2" in warm or "with a cold L2 at least" in warm
    )


@settings(deadline=None)
@given(
    tokens=st.sampled_from([1, 64, 512, 2048, 4096]),
    kernel=st.sampled_from(["fa2", "naive"]),
    gpu=st.sampled_from(["a100", "h200", "t4"]),
)
def test_what_a_warm_l2_leaves_to_hbm_is_told_by_what_is_compulsory(
    tokens: int, kernel: str, gpu: str
) -> None:
    kernel = "cutlass" if gpu == "t4" and kernel == "fa2" else kernel
    p = predict(problem(tokens, seq_k=4096), kernel, gpu, l2_start="warm")
    sentence = answer([p])
    read = p.hbm_payload.read
    least = p.hbm_bounds.compulsory_read
    if read * 1.05 < least:
        assert f"compulsory {bytes_text(least)} lie" in sentence
        assert "in the warm L2" in sentence
        assert (bytes_text(p.hbm.read) if read else "reads nothing from HBM") in sentence
    else:
        assert "even with a warm L2" in sentence


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (1.0, "the compulsory bytes"),
        (1.004, "the compulsory bytes"),
        (1.03, "about the compulsory bytes"),
        (1.2, "1.2x the compulsory bytes"),
    ],
)
def test_bytes_are_the_compulsory_ones_where_they_are(times: float, words: str) -> None:
    assert against(1_000_000 * times, 1_000_000) == words
    short = words.replace("about the compulsory bytes", "near-compulsory")
    assert against(1_000_000 * times, 1_000_000, "compulsory") == short.replace(
        "the compulsory bytes", "compulsory"
    )


def test_the_command_says_it_first_and_json_carries_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "--gpu", "a100", "--kernel", "naive", "--kernel", "fa2", "--seq-len", "2k"]
    assert main(words) == 0
    first = capsys.readouterr().out.splitlines()[0]
    data = as_json(capsys, *words)
    assert data["answer"] == first
    known = byte_numbers(data["predictions"]) | {bytes_text(load_profile("a100").need("l2_bytes"))}
    assert set(BYTES.findall(first)) <= known | {bytes_text(naive_scores(data))}
    assert main([*words, "--format", "csv"]) == 0
    assert first not in capsys.readouterr().out


def naive_scores(data: dict) -> int:
    """Bytes of the scores that naive attention leaves between its launches."""
    p = data["predictions"][0]["problem"]
    return int(p["heads"] * p["seq_q"] * p["seq_k"] * 2)


def test_the_one_that_reads_least_is_held_against_the_other_and_has_its_reason() -> None:
    naive, flash = (predict(problem(4096), kernel, "t4") for kernel in ("naive", "cutlass"))
    assert excess(naive) > excess(flash)
    sentence = answer([flash, naive])
    assert sentence == answer([naive, flash])
    both = f"({bytes_text(flash.hbm.read)} against {bytes_text(naive.hbm.read)})"
    assert re.match(
        rf"cutlass on t4 in fp16 reads [\d.]+x fewer bytes from HBM than naive {re.escape(both)}",
        sentence,
    )
    assert f" in {seconds_text(flash.time_s)} (boost), not {seconds_text(naive.time_s)}" in sentence
    assert reason(naive) in sentence


def test_of_three_each_has_a_line() -> None:
    several = [predict(problem(1024), kernel, "a100") for kernel in ("naive", "cutlass", "fa2")]
    *lines, last = answer(several).split("\n")
    assert {line.split(":")[0] for line in lines} == {
        f"{p.kernel.name} on a100-sxm-80gb in fp16" for p in several
    }
    for p in several:
        (line,) = (line for line in lines if line.startswith(f"{p.kernel.name} on"))
        assert bytes_text(p.hbm.read) in line
        assert seconds_text(p.time_s) in line
    assert last.endswith(f"{confidence(several)}.")


def test_of_several_lengths_the_longest_is_taken() -> None:
    short, long = (predict(problem(n), "fa2", "a100") for n in (512, 2048))
    assert answer([short, long]) == f"At 2,048 tokens {answer([long])}"


def test_of_many_the_first_and_the_least_are_named() -> None:
    predictions = [
        predict(problem(2048), k, g)
        for g in ("a100", "l4", "h100")
        for k in ("naive", "fa2", "cutlass")
    ]
    least = min(predictions, key=excess)
    sentence = answer(predictions)
    first, second, *_ = sentence.split("\n")
    assert first.startswith(f"{least.kernel.name} on {least.profile.name} in fp16: ")
    assert "least of 9" in first
    assert second.startswith("naive on ")


def test_scores_that_outgrow_the_l2_are_the_reason_of_naive_attention() -> None:
    p = predict(
        problem(4096), "naive", "t4"
    )  # 8 x 4,096^2 x 2 bytes = 268 MB of scores, 4 MiB of L2
    assert "S and P, 268.4 MB each, live between launches and exceed the 4.194 MB L2" in why(p)


def test_keys_that_outgrow_a_partition_are_the_reason_of_a_long_causal_call() -> None:
    p = predict(problem(65536, heads=2, head_dim=128, mask="causal", dtype="bf16"), "fa2", "h200")
    assert excess(p) > 2
    # 2 tensors x 65,536 x 128 x 2 bytes = 33.55 MB
    kept_text = bytes_text(partition_bytes(p))
    assert f"33.55 MB, exceed the {kept_text} that one partition of the L2 keeps" in why(p)
    assert "CTAs drift apart" in why(p)
    assert "spilled registers take room in the L2" in why(p)


def test_where_the_l2_serves_the_rest_it_says_so() -> None:
    p = predict(problem(2048), "fa2", "a100")
    assert why(p) == f"The SMs read {bytes_text(p.total('l2', 'read'))}: the L2 serves the rest"


def test_where_no_query_sees_a_key_nothing_is_compulsory() -> None:
    """The window of 3 keys ends 511 tokens before the first key."""
    sentence = answer([predict(problem(190, mask="window", window=3, offset=-511), "fa2", "h200")])
    assert "where nothing is compulsory: no query sees a key)" in sentence
    assert "times" not in sentence


def test_rows_that_no_query_needs_are_not_said_to_be_read_again() -> None:
    """The last of 1,500 queries alone sees the one key; standard attention reads the others once, too."""
    p = predict(problem(1500, seq_k=1, mask="causal"), "naive", "a100")
    assert why(p).startswith("Q is read 1,500 times what is needed of it")


def test_a_decoding_step_reads_nothing_twice() -> None:
    p = predict(problem(1, seq_k=8192), "fa2", "a100")
    assert "hardly read anything twice" in why(p)


def test_bounds_alone_give_an_interval_and_no_reason() -> None:
    p = predict(problem(), "fa2", "a100", method="bounds")
    assert "between" in answer([p])
    assert why(p) == reason(p) == ""
    assert answer([p]).endswith("Bounded, not simulated.")


def test_spilled_registers_alone_change_no_more_than_the_reason() -> None:
    p = predict(problem(65536, heads=2, head_dim=128, mask="causal", dtype="bf16"), "fa2", "h200")
    bare = predict(problem(2048, head_dim=128), "flash", "h200", overrides=Overrides(tile=(64, 64)))
    assert "spilled" in why(p)
    assert "spilled" not in why(bare)


def test_sentences_are_short() -> None:
    """None of more than 30 words, of whatever regime."""
    calls = [
        (problem(65536, heads=2, head_dim=128, mask="causal", dtype="bf16"), "fa2", "h200"),
        (problem(4096), "naive", "t4"),
        (problem(2048), "default", "l4"),
        (problem(1, seq_k=8192), "fa2", "a100"),
    ]
    for call in calls:
        for sentence in re.split(
            r"\. |\n", answer([predict(*call), predict(call[0], "flash", call[2])])
        ):
            assert len(sentence.split()) <= 30, sentence


# Trust


def trust(predictions: list[Prediction]) -> str:
    """What stands under an answer."""
    return ". ".join(basis(predictions))


def test_confidence_is_one_word_and_what_was_checked() -> None:
    h200 = predict(problem(), "fa2", "h200")
    l4 = predict(problem(), "fa2", "l4")
    fa3 = predict(problem(), "fa3", "h100")
    assert confidence([h200]) == "Simulated; checked against counters"
    assert confidence([l4]) == "Simulated. Backed by public counters"
    assert confidence([fa3]) == "Simulated; no counters of this kernel to compare with"
    assert confidence([h200, l4]) == "Simulated; checked for fa2 on h200-sxm alone"
    assert (
        confidence([predict(problem(), "naive", "h100")]) == "Simulated; not checked there"
    )  # counted on an H200
    assert (
        confidence([predict(problem(), "fa2", "h200", method="capacity")])
        == "Estimated, not simulated"
    )


def test_trust_follows_the_method_and_what_the_models_rest_on() -> None:
    h200 = predict(problem(), "fa2", "h200")
    l4 = predict(problem(), "fa2", "l4")
    assert trust([h200]).endswith(
        "against that GPU's counters. The L2 model's numbers: 9 measured, 1 published"
    )
    assert "not checked against that GPU's counters" in trust([l4])
    assert next(b for b in l4.evidence.bases if b.model == "hbm").validated_by is None
    assert "estimate" in trust([predict(problem(), "fa2", "h200", method="capacity")])
    both = trust([h200, l4])
    assert "on h200-sxm " in both
    assert "on l4 " in both


def test_trust_names_kernels_of_which_a_gpu_counted_one_and_says_numbers_once() -> None:
    counted, uncounted = (predict(problem(), name, "h100") for name in ("fa2", "fa3"))
    sentence = trust([counted, uncounted])
    assert "HBM bytes of fa2 on h100-sxm by replay, checked" in sentence
    assert (
        "HBM bytes of fa3 on h100-sxm by replay, with no counters of this kernel to compare with"
        in sentence
    )
    assert sentence.count("The L2 model's numbers") == 1
    assert "of fa2" not in trust([counted])


def test_a_profile_that_nobody_checked_is_not_said_to_be() -> None:
    h200 = load_profile("h200")
    unchecked = predict(problem(), "fa2", replace(h200, validation={}))
    assert "not checked" in trust([unchecked])


# Reports


@pytest.fixture(scope="module")
def report() -> Report:
    request = CaseGrid.of(
        ("t4", "a100"), ("naive", "cutlass", "fa2"), tuple(map(problem, (256, 1024, 4096)))
    )
    return build(request)


def verdicts(report: Report) -> tuple[str, ...]:
    return sentences.verdicts(report.points, "naive")


def test_a_verdict_a_gpu_names_the_kernel_that_moves_least(report: Report) -> None:
    for verdict, gpu in zip(verdicts(report), report.request.gpus, strict=True):
        assert verdict.startswith(f"On {gpu.label} at")
        points = [p for p in report.points if p.gpu.label == gpu.label and p.seq_len == 4096]
        named = re.match(
            rf"On {gpu.label} at 4,096 tokens (\w+) in fp16 moves ([\d.]+ \wB) at HBM", verdict
        )
        assert named
        best = next(p for p in points if p.kernel == named[1])
        assert best.hbm is not None
        assert named[2] == bytes_text(best.hbm)
        assert best.hbm <= 1.1 * min(p.hbm or 0 for p in points)
        naive = next(p for p in points if p.kernel == "naive")
        assert naive.hbm is not None
        stated = re.search(r"\), ([\d.]+)x less than naive", verdict)
        assert stated
        assert float(stated[1]) == pytest.approx(naive.hbm / best.hbm, rel=0.006)
        under = " ".join(
            sentences.further([p for p in report.points if p.gpu.label == gpu.label], "naive")
        )
        assert set(BYTES.findall(under)) >= {bytes_text(p.l2) for p in (best, naive)}


def test_from_which_length_on_half_the_bytes_are_saved(report: Report) -> None:
    for verdict, gpu in zip(
        sentences.further(report.points, "naive"), report.request.gpus, strict=True
    ):
        stated = re.search(r"(\w+) halves the HBM bytes from ([\d,]+) tokens on", verdict)
        if stated:
            hbm = {
                (p.kernel, p.seq_len): p.hbm or 0 for p in report.points if p.gpu.label == gpu.label
            }
            first = int(stated[2].replace(",", ""))
            for n in report.request.lengths:
                assert (hbm["naive", n] >= 2 * hbm[stated[1], n]) == (n >= first)


def test_verdicts_are_the_first_paragraphs_of_the_page(report: Report) -> None:
    paragraphs = markdown(as_page(report)).split("\n\n")
    assert paragraphs[1:3] == [*verdicts(report)]


def test_the_command_prints_the_verdicts_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "report",
        "--gpu",
        "a100,t4",
        "--kernel",
        "naive,cutlass",
        "--heads",
        "4",
        "--seq-len",
        "512,1k",
    ]
    assert main([*words, "--format", "md", "--out", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert [line.split(" at ")[0] for line in lines[:2]] == ["On a100-sxm-80gb", "On t4"]
    assert lines[0] in (tmp_path / "report.md").read_text(encoding="utf-8")


# How exact the bytes between SMs and L2 are


def exact(kernel: str, gpu: str, **values: object) -> str:
    return predict(problem(1024, **values), kernel, gpu, method="bounds").exactness


def test_counted_bytes_have_no_exception_where_counters_agree() -> None:
    for kernel, gpu in (("fa2", "a100"), ("cudnn", "h200"), ("cutlass", "h200"), ("naive", "h200")):
        assert "but for" not in exact(kernel, gpu, head_dim=128)
        assert "0.1 %" in exact(kernel, gpu, head_dim=128)


def test_spilled_registers_are_an_exception() -> None:
    p = predict(
        problem(4096, head_dim=128, mask="causal", dtype="bf16"), "fa2", "h200", method="bounds"
    )
    spilled = sum(int(r.bytes) for r in p.traffic if r.level == "l2" and r.tensor == "spill")
    assert spilled > 0
    assert f"but for the {bytes_text(spilled)} of spilled registers" in p.exactness
    assert p.to_dict()["evidence"]["sm_l2"] == p.exactness
    assert p.exactness in str(p)


def test_writes_of_a_backward_with_inferred_packets_are_an_exception() -> None:
    assert "the backward's writes" in exact("cudnn", "h200", passes="bwd")
    assert "the backward's writes" in exact("cudnn", "h200", passes="fwd+bwd")
    assert "the backward's writes" not in exact("flash", "h200", passes="bwd")


def test_fp32_products_of_standard_attention_are_an_exception() -> None:
    assert "fp32 products" in exact("naive", "a100", dtype="fp32")
    assert "fp32 products" in exact("math", "a100")
    assert "fp32 products" not in exact("flash", "a100", dtype="fp32")


@pytest.mark.parametrize(
    ("clocks", "words"),
    [("boost", "(boost clock)"), ("sustained", "(sustained clock)"), (1.095e9, "(1,095 MHz)")],
)
def test_the_first_lines_time_names_its_clock(clocks: str | float, words: str) -> None:
    problem = AttentionProblem(heads=4, seq_q=512, head_dim=64)
    p = predict(problem, "fa2", "h100", clocks=clocks)
    assert f"{seconds_text(p.time_s)} {words}, bound by" in answer([p])
