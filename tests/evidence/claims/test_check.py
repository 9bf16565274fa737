"""`iosim check-claim`: numbers that papers, tools and counters give are told apart, slips are named, and a number that
matches nothing is said to."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import reproduced
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from iosim.base.errors import InputError
from iosim.base.units import bytes_text
from iosim.commands.cli import main
from iosim.evidence.claims import Check, check, parse
from iosim.evidence.claims.check import head
from iosim.evidence.claims.readings import Reading
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem

pytestmark = pytest.mark.usefixtures("replays_once")


LENGTHS = (1024, 4096, 16384)


def problem(tokens: int = 1024, **values: object) -> AttentionProblem:
    return AttentionProblem(**{"heads": 32, "seq_q": tokens, "head_dim": 128} | values)  # type: ignore[arg-type]


def claimed(text: str, quantity: str = "hbm", tokens: int = 1024, **values: object) -> Check:
    return check(parse(quantity, text), problem(tokens, **values), "fa2", "a100")


@pytest.mark.parametrize(
    "n", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, len(LENGTHS)))]
)
def test_other_tools_numbers_are_recognised(n: int) -> None:
    """Section G's published numbers: 3 of LLM-Viewer's flash, 3 without, 3 of GenZ, 3 of AccelForge, 3 compulsory."""
    tokens = LENGTHS[n]
    words = {
        "LLM-Viewer, flash": "O taken as N x N",
        "LLM-Viewer, no flash": "as LLM-Viewer without flash",
        "GenZ, everything off chip": "as GenZ",
        "compulsory": "Q, K, V and O once",
        "96 KiB": "query tiles of 128 rows with no L2",
        "164 KiB": "query tiles of 256 rows with no L2",
    }
    for text, counts in words.items():
        megabytes = reproduced.find("G", text, f"N = {tokens:,}").claimed
        result = claimed(f"{megabytes}MB", tokens=tokens)
        assert any(counts in m.reading.counts and not m.reading.slips for m in result.matches), (
            tokens,
            megabytes,
        )
        assert abs(result.matches[0].error) <= result.tolerance


def test_llm_viewers_flash_is_a_mistake_and_the_right_number_stands_beside_it() -> None:
    result = claimed("276.8MB")
    best = result.matches[0].reading
    # 128-row tiles: 8 query blocks a head read K and V: 32 x (8 x 2 + 2) x 1,024 x 128 x 2 bytes = 151.0 MB;
    # O (8.4 MB) out, two N x N (67.1 MB each) in
    assert best.value == 150_994_944 - 8_388_608 + 2 * 67_108_864
    assert "mistake" in best.why
    assert "151 MB" in best.why
    assert "O taken as N x N" in result.answer()
    assert best.why[1:] in " ".join(result.beneath())
    assert bytes_text(result.prediction.total("hbm", "read")) in " ".join(result.beneath())


def test_what_iosim_predicts_matches_itself_and_needs_no_reason() -> None:
    p = predict(problem(), "fa2", "a100")
    result = claimed(f"{p.total('l2', 'read')} B", "l2")
    best = result.matches[0].reading
    assert (best.level, best.direction, best.why, best.slips) == ("l2", "read", "", ())
    assert "to the digit" in result.answer()


def test_a_number_of_another_level_says_so() -> None:
    p = predict(problem(4096), "fa2", "a100")
    as_hbm = check(parse("hbm", f"{p.total('l2', 'read')} B"), problem(4096), "fa2", "a100")
    match = next(m for m in as_hbm.matches if m.reading.counts.startswith("fa2's SM<->L2"))
    assert "the L2 serves a part" in match.reading.why
    as_l2 = check(
        parse("l2", "100.66 MB"), problem(4096), "fa2", "a100"
    )  # Q, K and V: 3 x 32 x 4,096 x 128 x 2 bytes
    assert any(
        m.reading.level == "hbm" and "Q, K and V once" in m.reading.counts for m in as_l2.matches
    )


@pytest.mark.parametrize(
    ("slip", "factor", "values"),
    [
        ("of one head", 1 / 32, {}),
        ("of one sequence", 1 / 3, {"batch": 3}),
        ("elements in place of bytes", 0.5, {}),
    ],
)
def test_slips_are_named(slip: str, factor: float, values: dict[str, object]) -> None:
    # 4 tensors x 32 heads x 1,000 x 128 x 2 bytes, an odd length so that little else is near
    value = 4 * 32 * 1000 * 128 * 2 * int(values.get("batch", 1)) * factor
    result = check(
        parse("hbm", f"{value:.0f}B"), problem(1000, **values), "fa2", "a100", tolerance=1e-6
    )
    assert any(
        m.reading.slips == (slip,) and m.reading.counts == "Q, K, V and O once"
        for m in result.matches
    )


def test_the_other_unit_is_a_slip() -> None:
    value = 4 * 32 * 1000 * 128 * 2 / 2**20  # MiB, written as MB
    result = check(parse("hbm", f"{value:.4f}MB"), problem(1000), "fa2", "a100", tolerance=1e-5)
    assert any(m.reading.slips == ("MiB written as MB",) for m in result.matches)


def test_the_command_takes_layers_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "check-claim",
        "--hbm",
        "8.6GB",
        "--kernel",
        "fa2",
        "--heads",
        "32",
        "--seq-len",
        "4096",
    ]
    assert main([*words, "--layers", "64", "--tolerance", "1%"]) == 0
    assert "of all 64 layers" in capsys.readouterr().out


def test_all_layers_are_a_slip_where_their_number_is_known() -> None:
    value = 7 * 4 * 32 * 1000 * 128 * 2
    amount = parse("hbm", f"{value}B")
    known = check(amount, problem(1000), "fa2", "a100", tolerance=1e-6, layers=7)
    assert any(m.reading.slips == ("of all 7 layers",) for m in known.matches)
    unknown = check(amount, problem(1000), "fa2", "a100", tolerance=1e-6)
    assert not any("layers" in slip for m in unknown.matches for slip in m.reading.slips)


@pytest.mark.parametrize(
    ("options", "meant", "slip"),
    [
        ({}, {"dtype": "fp32"}, "fp32 in place of fp16"),
        ({}, {"mask": "causal"}, "with a causal mask"),
        ({"mask": "causal"}, {"mask": "none"}, "without the causal mask"),
        ({"passes": "bwd"}, {"passes": "fwd"}, "forward alone"),
    ],
)
def test_other_problems_are_slips(
    options: dict[str, object], meant: dict[str, object], slip: str
) -> None:
    kernel = "flash"  # takes every type
    other = predict(problem(1000, **(options | meant)), kernel, "a100", method="bounds")
    amount = parse("l2", f"{other.total('l2')}B")
    result = check(amount, problem(1000, **options), kernel, "a100", tolerance=1e-9)
    assert any(m.reading.slips == (slip,) for m in result.matches)


def test_as_many_key_heads_as_query_heads_are_a_slip() -> None:
    value = 4 * 32 * 1000 * 128 * 2  # Q, K, V and O of 32 heads each
    result = check(
        parse("hbm", f"{value}B"), problem(1000, kv_heads=8), "fa2", "a100", tolerance=1e-9
    )
    slip = "with 32 key/value heads in place of 8"
    assert any(
        m.reading.slips == (slip,) and m.reading.counts == "Q, K, V and O once"
        for m in result.matches
    )


def test_fewer_slips_stand_before_closer_numbers() -> None:
    result = claimed("4.3GB", tokens=4096)
    assert {len(m.reading.slips) for m in result.matches} == {0}
    assert all(abs(m.error) <= result.tolerance for m in result.matches)


def test_a_number_that_matches_nothing_says_what_is_nearest() -> None:
    result = claimed("987654321GB")
    assert result.matches == ()
    assert f"matches none of {result.tried} counts" in result.answer()
    assert f"{100 * result.nearest.error:+,.2f} %" in result.answer()


@settings(max_examples=examples(30), deadline=None)
@given(exponent=st.floats(5, 12))
@pytest.mark.slow
def test_errors_are_the_claim_over_the_count(exponent: float) -> None:
    result = claimed(f"{10**exponent:.0f}B", tokens=512)
    for m in (*result.matches, result.nearest):
        assert m.error == pytest.approx(result.claim.value / m.reading.value - 1)
        assert math.isfinite(m.error)
    assert all(abs(m.error) <= result.tolerance for m in result.matches)


def test_times_and_operations() -> None:
    p = predict(problem(4096, mask="causal"), "fa2", "a100")
    bandwidth = p.profile.dram_bandwidth_bytes_per_s or 1
    bounds = p.hbm_bounds
    seconds = (bounds.compulsory_read + bounds.compulsory_write) / bandwidth
    roofline = check(
        parse("time", f"{seconds * 1e6:.4f}us"), problem(4096, mask="causal"), "fa2", "a100"
    )
    assert any("the compulsory bytes over HBM's" in m.reading.counts for m in roofline.matches)
    # 4 N^2 d x 32 heads, half of it causal: 2 x 4096^2 x 128 x 32
    half = check(parse("flops", "137.439GFLOP"), problem(4096, mask="causal"), "fa2", "a100")
    assert any("half of 4 N^2 d" in m.reading.counts for m in half.matches)
    whole = check(parse("flops", "274.878GFLOP"), problem(4096, mask="causal"), "fa2", "a100")
    assert any("4 N^2 d a head" in m.reading.counts and not m.reading.slips for m in whole.matches)


LLM_VIEWER = (
    "check-claim",
    "--hbm",
    "276.8MB",
    "--heads",
    "32",
    "--seq-len",
    "1k",
    "--head-dim",
    "128",
)


def test_text_and_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(LLM_VIEWER)) == 0
    text = capsys.readouterr().out
    assert main([*LLM_VIEWER, "--l2", "1GB", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data) == ["schema", "answer", "claims"]
    hbm, l2 = data["claims"]
    assert text.splitlines()[0] == hbm["answer"]
    assert data["answer"] == f"{hbm['answer']}\n{l2['answer']}"
    assert (hbm["quantity"], hbm["value"], l2["quantity"]) == ("hbm", 276.8e6, "l2")
    assert hbm["matches"][0]["slips"] == []
    assert hbm["predicted"]["read"] > 0
    assert main([*LLM_VIEWER, "--format", "csv"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].startswith("claim,quantity,counts,level,direction,value,error,slips,why")
    assert len(rows) == 1 + len(hbm["matches"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), ("--hbm", "accepted")),
        (("--hbm", "4.3"), ("--hbm", "'4.3'", "accepted")),
        (("--time", "1GB"), ("--time", "'1GB'")),
        (("--hbm", "1GB", "--tolerance", "3"), ("--tolerance", "'3'")),
        (("--hbm", "1GB", "--tolerance", "x"), ("--tolerance", "'x'")),
        (("--hbm", "1GB", "--layers", "0"), ("--layers",)),
        (("--hbm", "1GB", "--seq-len", "1k,2k"), ("--seq-len",)),
        (("--hbm", "1GB", "--gpu", "nope"), ("nope",)),
        (("--hbm", "1GB", "--hbm", "2GB"), ("--hbm",)),
        (("--hbm", "1GB", "--kernel", "fa3"), ("fa3",)),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: tuple[str, ...]
) -> None:
    assert main(["check-claim", *words]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1
    for word in message:
        assert word in output.err


def of_4096(option: str, text: str, **values: object) -> Check:
    return check(parse(option, text), problem(4096, **values), "fa2", "a100")


def test_twice_what_is_predicted_is_two_calls() -> None:
    read = predict(problem(4096), "fa2", "a100").total("hbm", "read")
    best = of_4096("hbm", f"{2 * read}B").matches[0].reading
    assert (best.slips, best.direction, best.level) == (
        ("of two calls, or of one and its warm-up",),
        "read",
        "hbm",
    )
    assert best.counts.startswith("fa2's HBM bytes")


@pytest.mark.parametrize(
    "option", ["hbm", "l2", "time", "flops", "ratio", "tflops", "mfu", "bandwidth"]
)
def test_what_is_predicted_is_called_true(option: str) -> None:
    p = predict(problem(4096), "fa2", "a100")
    naive = predict(problem(4096), "naive", "a100")
    true = {
        "hbm": f"{p.total('hbm', 'read')}B",
        "l2": f"{p.total('l2')}B",
        "time": f"{1e6 * p.time_s:.6f}us",
        "flops": f"{p.flops} FLOP",
        "ratio": f"{naive.total('hbm') / p.total('hbm'):.4f}x",
        "tflops": f"{p.flops / p.time_s / 1e12:.4f}",
        "mfu": f"{100 * p.flops / p.time_s / 312e12:.4f}%",
        "bandwidth": f"{p.total('hbm') / p.time_s / 1e9:.4f}GB/s",
    }
    result = of_4096(option, true[option])
    assert result.agrees is not None
    assert abs(result.agrees.error) < 1e-3
    assert "agrees with the prediction" in result.answer().split(". ")[0]
    assert result.to_dict()["agrees"] is not None
    false = parse(option, true[option])
    assert (
        check(replace(false, value=1.7 * false.value), problem(4096), "fa2", "a100").agrees is None
    )


def test_a_measured_time_is_true_within_the_error_of_the_model_and_not_by_a_bound_that_is_nearer() -> (
    None
):
    p = predict(problem(4096), "fa2", "a100")
    result = of_4096("time", f"{1.08e6 * p.time_s:.3f}us")
    assert result.agrees is not None
    assert "within the error of the model" in result.answer()
    exact = check(
        parse("time", f"{1.08e6 * p.time_s:.3f}us"), problem(4096), "fa2", "a100", tolerance=0.01
    )
    assert exact.agrees is None  # who names a tolerance gets that one


def test_naive_attention_is_not_set_beside_itself() -> None:
    with pytest.raises(InputError, match=r"cannot be set beside naive.*accepted: another kernel"):
        check(parse("ratio", "9x"), problem(4096), "naive", "a100")


@pytest.mark.parametrize(
    ("option", "of"), [("hbm", "HBM bytes"), ("l2", "SM<->L2 bytes"), ("time", "time")]
)
def test_a_ratio_is_taken_where_an_amount_is(option: str, of: str) -> None:
    amount = parse(option, "9x")
    assert (amount.quantity, amount.of, amount.value) == ("ratio", option, 9.0)
    kernel, naive = (predict(problem(4096), name, "a100") for name in ("fa2", "naive"))
    counts = {
        "hbm": naive.total("hbm") / kernel.total("hbm"),
        "l2": naive.total("l2") / kernel.total("l2"),
        "time": naive.time_s / kernel.time_s,
    }
    result = of_4096(option, f"{counts[option]:.3f}x")
    assert result.agrees is not None
    assert of in result.agrees.reading.counts


def test_a_papers_number_is_found_with_its_own_problem() -> None:
    """FlashAttention's 40.3 GB are of 64 x 16 heads of 1,024 x 64, forward and backward, not of what is asked for."""
    result = of_4096("hbm", "40.3GB")
    assert result.agrees is None
    assert result.published is not None
    assert (result.published.section, result.published.claimed) == ("B", 40.3)
    assert result.published.computed == pytest.approx(40.3, rel=0.01)
    assert "is published" in result.answer()
    assert "section B of 'iosim reproduce'" in " ".join(result.beneath())
    assert of_4096("hbm", "40.4GB").published is None


@pytest.mark.parametrize(("errors", "allowed", "within_error", "agrees"), [
    # Predictions may be off from 0.9 to 1.2 times: a claim that is 15 % more agrees, one that is 15 % less does not.
    ([], 0.02, True, None),
    ([0.01], 0.02, True, 0.01), ([-0.02], 0.02, True, -0.02),
    ([0.15], 0.02, True, 0.15), ([-0.15], 0.02, True, None),
    ([0.2], 0.02, True, 0.2), ([0.25], 0.02, True, None), ([-0.1], 0.02, True, -0.1),
    ([0.15], 0.02, False, None), ([0.15], 0.15, False, 0.15),  # a tolerance that was asked for is strict
    ([-0.5, 0.12, 0.3], 0.02, True, 0.12),  # the nearest one
])  # fmt: skip
def test_what_a_claim_agrees_with(
    errors: list[float],
    allowed: float,
    within_error: bool,
    agrees: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checking = sys.modules[Check.__module__]
    monkeypatch.setattr(checking, "_error", lambda *arguments: (0.9, 1.2))
    matches = [checking.Match(Reading("bytes", "hbm", "read", 1.0), error) for error in errors]
    agreement = checking._agreeing(None, None, matches, allowed, within_error=within_error)
    assert (None if agreement is None else agreement.error) == agrees


def test_the_head_of_a_claim_by_what_was_found() -> None:
    def head_of(agrees: bool | None, matches: tuple[str, ...]) -> str:
        claim = SimpleNamespace(text="9.1 MB")
        checked = SimpleNamespace(claim=claim, agrees=agrees, matches=matches, tolerance=0.02)
        return head(checked)  # type: ignore[arg-type]

    assert head_of(True, ()) == "9.1 MB: what is predicted"
    assert head_of(True, ("a count",)) == "9.1 MB within 2 % of"
    assert head_of(None, ("a count",)) == "9.1 MB within 2 % of"
    assert head_of(None, ()) == "9.1 MB: the nearest count"
