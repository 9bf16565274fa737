"""Which GPU to take: rows are predict's own, prices and ranges follow from them, and the frontier is what it says."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from scripts import ROOT

import iosim
from iosim.base.units import bytes_text
from iosim.commands.cli import main
from iosim.studies.compare import Choice
from iosim.studies.compare.choice import FRONTIERS, Amount, total
from iosim.studies.compare.choice_face import answer, as_page
from iosim.studies.compare.choice_figure import figure

SIZES: Any = {"heads": 8, "head_dim": 64, "causal": True}
PRICES = {"a100-sxm-80gb": 1.5, "h100-sxm": 2.5, "h200-sxm": 3.5}
PRICE = "a100=1.5,h100=2.5,h200=3.5"


@pytest.fixture
def powerless(tmp_path: Path) -> str:
    """The file of a GPU whose power nobody knows, nor at which rate its products draw it."""
    shipped = (ROOT / "hardware_profiles" / "b200.toml").read_text(encoding="utf-8")
    place = tmp_path / "powerless.toml"
    rates, sources = (
        r"^\[tensor_flops_achieved_per_s\].*?(?=^\[)",
        r"^(mamf-fp8|ml-engineering) =[^\n]*\n",
    )
    pattern = rf"(?ms)^(peak_)?power_w[^\n]*\n|{rates}|{sources}"
    place.write_text(re.sub(pattern, "", shipped).replace('name = "b200"', 'name = "powerless"'))
    return str(place)


@pytest.fixture(scope="module")
def choice() -> Choice:
    return iosim.compare(
        gpu="a100,h100,h200", per="dollar", price=PRICE, batch=[1, 4], seq_len=[512, 1024], **SIZES
    )


def test_a_row_is_what_predict_says_of_its_kernel(choice: Choice) -> None:
    assert {(o.gpu.label, o.work.batch, o.work.queries) for o in choice.options} == set(
        product(PRICES, (1, 4), (512, 1024))
    )
    for o in choice.options:
        alone = iosim.predict(
            gpu=o.gpu.label, kernel=o.kernel, batch=o.work.batch, seq_len=o.work.queries, **SIZES
        )
        assert o.time_s.value == alone.time_s
        assert o.time_s.range == (alone.time_range and alone.time_range.seconds)
        assert (
            o.work.tokens == o.work.batch * o.work.queries
        )  # a prefill's tokens are all of its sequences'
        assert o.tokens_per_s.value == pytest.approx(o.work.tokens / alone.time_s)
        row = o.to_dict()
        dollars = alone.time_s * PRICES[o.gpu.label] / 3600
        assert row["dollars_per_million_tokens"] == pytest.approx(1e6 * dollars / o.work.tokens)
        joules = None if alone.energy_j is None else pytest.approx(sum(alone.energy_j.values()))
        assert row["energy_j"] == joules
        assert (
            o.a_token("energy_j") is None
            if joules is None
            else row["joules_per_token"] * o.work.tokens == joules
        )


def test_no_kernel_that_was_asked_for_is_faster(choice: Choice) -> None:
    for o in choice.options[:4]:
        for kernel in ("fa2", "cutlass", "fa3", "cudnn"):
            try:
                other = iosim.predict(
                    gpu=o.gpu.label,
                    kernel=kernel,
                    batch=o.work.batch,
                    seq_len=o.work.queries,
                    **SIZES,
                )
            except iosim.InputError:
                continue
            assert other.time_s >= o.time_s.value * 0.95  # the estimate may leave out a near one


def test_the_order_is_by_what_is_asked(choice: Choice, powerless: str) -> None:
    for per, quantity in (("token", "time_s"), ("joule", "energy_j"), ("dollar", "dollars")):
        gpus = f"{powerless},h100,h200" if per == "joule" else "a100,h100,h200"
        price = PRICE if per == "dollar" else None
        ranked = iosim.compare(gpu=gpus, per=per, price=price, batch=[1, 4], seq_len=512, **SIZES)
        values = [value and value.value for o in ranked.options for value in [o.a_token(quantity)]]
        known = [v for v in values if v is not None]
        assert known == sorted(known)
        assert values[: len(known)] == known  # what is not known is last
        if per == "joule":
            assert {o.gpu.label for o in ranked.options if o.energy_j is None} == {"powerless"}
            assert "energy is not known on powerless" in str(ranked)
            assert "not known" in str(ranked)
    assert [o.work.queries for o in choice.options] == [512] * 6 + [1024] * 6


def test_ranges_follow_the_time_where_rates_were_not_measured(choice: Choice) -> None:
    by_gpu = {o.gpu.label: o for o in choice.options}
    assert by_gpu["h200-sxm"].time_s.range is None
    dollars = by_gpu["h200-sxm"].dollars
    assert dollars is not None
    assert dollars.range is None
    assert dollars.value == pytest.approx(by_gpu["h200-sxm"].time_s.value * 3.5 / 3600)
    h100 = by_gpu["h100-sxm"]
    (low, high), energy = h100.time_s.ends, h100.energy_j
    assert low < h100.time_s.value < high
    assert h100.tokens_per_s.ends == pytest.approx(
        (h100.work.tokens / high, h100.work.tokens / low)
    )
    assert energy is not None
    awake = (h100.predictions[0].energy_j or {})["awake"]
    assert energy.ends[1] - energy.value == pytest.approx(awake * (high / h100.time_s.value - 1))
    a100 = by_gpu["a100-sxm-80gb"]  # its energies were not measured: of what moves 25 % either way
    assert a100.energy_j is not None
    joules, (low, high) = a100.predictions[0].energy_j or {}, a100.time_s.ends
    more = 0.25 * (sum(joules.values()) - joules["awake"]) + joules["awake"] * (
        high / a100.time_s.value - 1
    )
    assert a100.energy_j.ends[1] - a100.energy_j.value == pytest.approx(more)
    assert total([Amount(1.0, (0.5, 2.0)), Amount(3.0)]) == Amount(4.0, (3.5, 5.0))


def test_the_frontier_is_what_nothing_beats(choice: Choice) -> None:
    for o, (word, quantity) in product(choice.options, FRONTIERS.items()):
        places = [(p.time_s.value, p.a_token(quantity)) for p in choice.at(o.work.length)]
        per_token = o.a_token(quantity)
        beaten = per_token is None or any(
            time <= o.time_s.value
            and other is not None
            and other.value <= per_token.value
            and (time, other) != (o.time_s.value, per_token)
            for time, other in places
        )
        assert (word in o.frontier) == (not beaten)
    assert any("cost" in o.frontier for o in choice.options)
    panels = {panel.id: panel for panel in choice._panels()}
    assert set(panels) == {"cost-1", "cost-2", "energy-1", "energy-2"}
    front = panels["cost-2"].data[0]
    assert list(front["x"]) == sorted(
        o.time_s.value for o in choice.at((1024, 1024)) if "cost" in o.frontier
    )


def test_a_model_is_the_sum_of_its_layers() -> None:
    comparison = iosim.compare(
        model="gpt-oss-20b",
        gpu="h100",
        kernel="default",
        per="dollar",
        price="h100=2",
        tensor_parallel=2,
        batch=4,
        seq_len=1,
        seq_len_k=[1024],
    )
    (option,) = comparison.options
    alone = iosim.predict(
        model="gpt-oss-20b", gpu="h100", tensor_parallel=2, batch=4, seq_len=1, seq_len_k=1024
    )
    assert option.time_s.value == pytest.approx(alone.time_s)
    assert option.energy_j is not None
    assert option.energy_j.value == pytest.approx(2 * (alone.energy_j or 0))  # both GPUs
    assert option.work.tokens == 4  # a step of decoding: one a sequence
    row = option.to_dict()
    assert row["dollars_per_million_tokens"] == pytest.approx(1e6 * alone.time_s * 2 * 2 / 3600 / 4)
    assert "attention alone: projections, MLP and head are not counted" in comparison.notes
    assert "GPT-OSS" in answer(comparison).upper()


def test_what_does_not_fit_is_last_and_on_no_frontier() -> None:
    comparison = iosim.compare(
        model="llama-3-8b", gpu="t4,h100", per="token", batch=8, seq_len=1, seq_len_k="4k"
    )
    assert [(o.gpu.label, o.fits) for o in comparison.options] == [
        ("h100-sxm", True),
        ("t4", False),
    ]
    assert comparison.options[1].frontier == ()
    assert "memory of t4" in " ".join(comparison.notes)
    assert answer(comparison).startswith("h100-sxm serves the most")


def test_no_gpu_is_named_best_that_lacks_the_memory_or_whose_energy_is_not_known(
    powerless: str,
) -> None:
    options: Any = {
        "model": "llama-3-70b",
        "batch": 8,
        "seq_len": 1,
        "method": "capacity",
        "kernel": "default",
    }
    comparison = iosim.compare(gpu="t4,a100", per="token", seq_len_k="8k", **options)
    cache = (
        80 * 2 * 8 * 128 * 2 * 8 * 8192
    )  # layers, K and V, key/value heads, head_dim, bytes, sequences, tokens
    takes = bytes_text(cache + comparison.options[0].work.model.weight_bytes)
    assert answer(comparison).startswith(
        "No GPU has the memory for the attention of Llama 3 70B (batch 8, 1 x 8,192 tokens)"
    )
    assert answer(comparison).endswith(
        f": it takes {takes} with the model's weights, and a100-sxm-80gb has 85.9 GB."
    )
    comparison = iosim.compare(
        gpu=f"h100,{powerless}", per="joule", seq_len_k="8k", **options
    )  # that has the memory alone
    assert answer(comparison).startswith("No GPU whose energy is known has the memory for")
    assert "h100-sxm has 85.02 GB" in answer(comparison)
    assert repr(comparison).startswith("<Choice: 2 GPUs by joule; best: none")
    assert comparison._panels() == ()  # nothing of which energy is known fits


def test_gpus_that_are_best_at_other_lengths_are_named() -> None:
    options: Any = {"gpu": "h200,b200", "per": "token", "batch": 16, "kv_heads": 8, "seq_len": 1}
    comparison = iosim.compare(**options, seq_len_k="256,64k")
    firsts = [comparison.at(length)[0].gpu.label for length in comparison.lengths]
    assert len(set(firsts)) == 2
    assert f"At 1 x 256 tokens it is {firsts[0]}." in answer(comparison)
    assert "it is" not in answer(iosim.compare(**options, seq_len_k="64k")).replace(
        "it is bound", ""
    )


def test_a_batch_that_is_asked_for_twice_is_one_row() -> None:
    assert (
        len(iosim.compare(gpu="a100", per="token", batch="2,2", seq_len=512, kernel="fa2").options)
        == 1
    )


def test_what_cannot_run_at_one_length_alone_is_said() -> None:
    comparison = iosim.compare(
        gpu="t4,h100", per="token", batch="1,2", seq_len=512, method="capacity", kernel="fa3,flash"
    )
    assert comparison.missing == tuple(dict.fromkeys(comparison.missing))
    assert {line.split(":")[0] for line in comparison.missing} == {"fa3 on t4"}


def test_the_answer_says_which_by_how_much_why_and_how_sure(choice: Choice) -> None:
    text = answer(choice)
    best, *others = choice.at((1024, 1024))
    second = next(o for o in others if o.gpu != best.gpu)
    assert text.startswith(f"{best.gpu.label} is the cheapest for this attention")
    first = text.split(". ")[0]
    assert f"of {second.gpu.label}" in text
    assert "per hour" in text
    assert re.search(
        r"\$\S+ \(\$\S+ to \$\S+\) per billion tokens with \w+, \d+ % of the \$\S+ of", text
    ), first
    h = iosim.compare(gpu="h100,h200", per="token", seq_len=1024, **SIZES)
    assert "The ranges overlap" in answer(h)
    a = iosim.compare(gpu="h200,t4", per="token", seq_len=1024, **SIZES)
    assert "The ranges overlap" not in answer(a)


def test_what_cannot_run_is_said() -> None:
    comparison = iosim.compare(gpu="v100,a100", per="token", kernel="fa3,fa2", seq_len=512)
    assert [o.gpu.label for o in comparison.options] == ["a100-sxm-80gb"]
    assert [line.split(":")[0] for line in comparison.missing] == [
        "fa3 on v100-sxm2",
        "fa2 on v100-sxm2",
        "fa3 on a100-sxm-80gb",
    ]
    assert "`" not in "".join(comparison.missing)
    assert not iosim.compare(
        gpu="a100", per="token", seq_len=512
    ).missing  # nobody asked for fa3 there


def test_the_command_writes_all_its_forms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], powerless: str
) -> None:
    options = (
        "--gpu a100,h100 --per dollar --price a100=1,h100=3 --seq-len 512 --batch 1,2 --heads 4"
    )
    line = ["compare", *options.split()]
    page, rows = tmp_path / "page.html", tmp_path / "rows.csv"
    assert main([*line, "--html", str(page), "--csv", str(rows), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["per"] == "dollar"
    assert len(data["rows"]) == 4
    assert len(rows.read_text().splitlines()) == 1 + 4
    assert "cost-1" in page.read_text()
    assert (
        as_page(iosim.compare(gpu=powerless, per="token", seq_len=512)).sections[0].id == "rows"
    )  # nothing to draw


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--gpu a100,t4 --per dollar", "--per dollar needs a price of a100-sxm-80gb, t4"),
        ("--gpu a100,t4 --per dollar --price a100=1", "--per dollar needs a price of t4"),
        (
            "--gpu a100 --per dollar --price a100=1,h100=2",
            "--price h100 is none of the GPUs compared",
        ),
        ("--gpu a100 --per dollar --price a100=1,zz=2", "GPU 'zz' is not known"),
        ("--gpu a100 --per dollar --price a100=x", "--price 'a100=x' is no price"),
        ("--gpu a100 --per dollar --price a100", "--price 'a100' is no price"),
        ("--gpu a100 --per dollar --price =2", "--price '=2' is no price"),
        ("--gpu a100 --per token --method bounds", "--method bounds gives no time of HBM"),
        ("--gpu a100 --per dollar --price a100=nan", "--price 'a100=nan' is out of range"),
        ("--gpu a100 --per dollar --price a100=-1", "--price 'a100=-1' is out of range"),
        ("--gpu a100 --per dollar --price a100=1,a100=2", "--price a100-sxm-80gb is given twice"),
        ("--gpu a100 --per watt", "--per 'watt' is not known"),
        ("--gpu a100 --per token --baseline fa2", "--baseline fa2 contradicts --per"),
        ("--gpu a100 --price a100=1", "--price goes with --per"),
        ("--gpu a100 --batch 1,2", "--batch 1,2 are 2 values; accepted without --per"),
        (
            "--gpu a100 --seq-len-k 1k,2k",
            "--seq-len-k 1024,2048 are 2 values; accepted without --per",
        ),
        ("--gpu t4 --per token --kernel fa3", "no kernel can run: --kernel fa3"),
        ("--gpu t4 --per token --kernel nonsense", "'nonsense'"),
    ],
)
def test_bad_input_is_one_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, ["compare", "--seq-len", "512", *line.split()])


def test_energy_that_nobody_knows_ranks_nothing(
    powerless: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["compare", "--seq-len", "512", "--gpu", powerless, "--per", "joule"]
    assert "--per joule: energy is not known on powerless" in refused(capsys, line)


def test_python_refuses_the_same() -> None:
    with pytest.raises(iosim.InputError, match="price goes with per"):
        iosim.compare(gpu="a100", seq_len=512, price="a100=1")
    with pytest.raises(iosim.InputError, match="batch 1,2 are 2 values"):
        iosim.compare(gpu="a100", seq_len=512, batch=[1, 2])
    with pytest.raises(iosim.InputError, match="baseline fa2 contradicts per"):
        iosim.compare(gpu="a100", seq_len=512, per="token", baseline="fa2")
    problems = [iosim.AttentionProblem(heads=heads, seq_q=512, seq_k=512) for heads in (4, 8)]
    with pytest.raises(
        iosim.InputError, match="may differ in their batch and sequence lengths alone"
    ):
        iosim.compare(problems, gpu="a100", per="token")


def test_of_several_kernels_the_fastest_is_taken_wherever_it_stands() -> None:
    kernels = ("naive", "fa2", "cutlass", "fa3")
    times = {k: iosim.predict(gpu="h100", kernel=k, seq_len=1024, **SIZES).time_s for k in kernels}
    for order in (kernels, kernels[::-1]):
        (option,) = iosim.compare(
            gpu="h100", per="token", kernel=order, seq_len=1024, **SIZES
        ).options
        assert (option.kernel, option.time_s.value) == min(times.items(), key=lambda pair: pair[1])


def test_dollars_are_of_a_billion_tokens_of_a_call_and_of_a_million_of_a_model() -> None:
    options: Any = {
        "gpu": "h200",
        "kernel": "fa3",
        "per": "dollar",
        "price": "h200=3.6",
        "seq_len": 1024,
    }
    call = iosim.compare(**options, **SIZES)
    model = iosim.compare(**options, model="llama-3-8b")
    for choice, tokens, of in ((call, 10**9, "billion"), (model, 10**6, "million")):
        dollars = choice.options[0].time_s.value * 3.6 / 3600 / 1024 * tokens
        assert f": ${dollars:.3g} per {of} tokens with fa3" in answer(choice)
        assert f"cost per {of} tokens" in str(choice)


def test_reasons_do_not_contradict_the_verdict() -> None:
    options: Any = {
        "gpu": "h200,b200",
        "per": "token",
        "batch": 16,
        "kv_heads": 8,
        "seq_len": 1,
        "seq_len_k": "1k",
    }
    text = answer(iosim.compare(**options))
    assert "both are bound by HBM" in text
    by_rates = "8 TB/s against 4.8 TB/s" in text
    assert by_rates == text.startswith(
        "b200 serves the most"
    )  # rates are the reason only where they favour it
    comparison = iosim.compare(
        gpu="a100,a100-pcie-80gb", per="token", kernel="flash", seq_len=512, heads=4
    )
    assert "with flash, as much as the" in answer(comparison)


def test_a_figure_says_which_gpus_it_leaves_out(powerless: str) -> None:
    of_energy = figure(
        iosim.compare(gpu=f"{powerless},h100", per="token", seq_len=512, **SIZES), "energy"
    )
    assert of_energy is not None
    assert [series.name for series in of_energy.legend] == ["h100-sxm"]
    assert of_energy.left_out == ("powerless: energy is not known, or memory too small",)


def test_ranges_are_drawn_and_said_to_overlap() -> None:
    comparison = iosim.compare(
        gpu="a100,h100", kernel="fa2", per="dollar", price="a100=1.5,h100=2.5", seq_len=4096
    )
    page = as_page(comparison)
    assert "The ranges overlap: not certain" in page.verdict[0]
    drawn = figure(comparison, "cost")
    assert drawn is not None
    lines = [t for t in drawn.panels[0].data if t["mode"] == "lines" and t["name"] != "frontier"]
    ends = {t["name"]: (t["y"][0], t["y"][1]) for t in lines}
    assert set(ends) == {"a100-sxm-80gb", "h100-sxm"}
    (low, high), (other_low, other_high) = ends.values()
    assert low < other_high
    assert other_low < high
    # Beside the ranges a point a GPU: its time, and within its range what a call costs.
    points = {t["name"]: t for t in drawn.panels[0].data if t["mode"] != "lines"}
    assert set(points) == set(ends)
    for option in comparison.options:
        (time_s,), (cost,) = points[option.gpu.label]["x"], points[option.gpu.label]["y"]
        assert time_s == option.time_s.value
        assert ends[option.gpu.label][0] <= cost <= ends[option.gpu.label][1]
