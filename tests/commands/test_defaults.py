"""How commands behave towards whoever types them: defaults of their own, rows as they want them, silence, versions."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from refusals import refused

import iosim
from iosim.commands.cli import main

QUICK = ["--kernel", "fa2", "--seq-len", "256", "--method", "bounds"]


def gpus(capsys: pytest.CaptureFixture[str], *words: str) -> set[str]:
    assert main(["predict", *QUICK, *words, "--format", "json"]) == 0
    return {p["profile"] for p in json.loads(capsys.readouterr().out)["predictions"]}


def test_the_environment_and_a_settings_file_say_the_usual_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "config.toml"
    place.write_text('[defaults]\ngpu = ["h100", "l4"]\ndtype = "bf16"\n')
    monkeypatch.setenv("IOSIM_CONFIG", str(place))
    assert gpus(capsys) == {"h100-sxm", "l4"}
    assert gpus(capsys, "--gpu", "a100") == gpus(capsys, "--gpus=a100") == {"a100-sxm-80gb"}
    assert main(["predict", *QUICK, "--gpu", "l4", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictions"][0]["problem"]["dtype"] == "bf16"
    monkeypatch.setenv("IOSIM_GPU", "l40s")
    assert gpus(capsys) == {"l40s"}
    assert main(["formula", "fa2"]) == 0  # a command that takes no usual GPU
    capsys.readouterr()
    place.write_text('[defaults]\ngpus = "h100"\n')
    refused(capsys, ["predict", *QUICK], str(place), "'gpus'", "gpu")
    place.write_text("[defaults]\nheads = true\n")
    refused(capsys, ["predict", *QUICK], str(place), "heads True")


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, str]]:
    assert main([*words, "--format", "csv"]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


@pytest.mark.parametrize("command", ["predict", "sweep", "compare"])
def test_rows_are_chosen_and_sorted_by_the_columns_of_the_csv(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [command, "--gpu", "l4,h100", "--kernel", "fa2,cutlass", "--seq-len", "256"]
    every = rows(capsys, *arguments)
    assert {"gpu", "kernel", "time_s", "hbm_read_bytes"} <= set(every[0])
    for sort, descends in (("time_s", False), ("time_s:desc", True)):
        printed_rows = rows(capsys, *arguments, "--columns", "kernel,time_s", "--sort", sort)
        assert [*printed_rows[0]] == ["kernel", "time_s"]
        times = [float(row["time_s"]) for row in printed_rows]
        assert times == sorted((float(row["time_s"]) for row in every), reverse=descends)
    assert main([*arguments, "--columns", "gpu,time_s"]) == 0
    assert "gpu" in capsys.readouterr().out
    refused(capsys, [*arguments, "--sort", "tim"], "--sort 'tim'", "time_s")
    refused(
        capsys,
        [*arguments, "--columns", "gpu", "--format", "json"],
        "--columns contradicts --format json",
    )


def test_quiet_says_nothing_but_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in ([], ["--quiet"]):
        assert main(["predict", *QUICK, "--out", str(tmp_path / "x"), *quiet]) == 0
        assert bool(capsys.readouterr().err) is not bool(quiet)
    refused(capsys, ["predict", "--gpu", "nosuch", "--quiet"], "nosuch")
    assert main(["predict", *QUICK, "--out", str(tmp_path / "x")]) == 0
    assert capsys.readouterr().err, "the next command is not quiet"


def test_the_version_names_the_commit_of_a_checkout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"iosim {iosim.__version__}")


def test_results_are_json_and_plots() -> None:
    comparison = iosim.compare(kernel="fa2,cutlass", gpu="a100", seq_len=[256, 512])
    assert json.loads(comparison.to_json()) == json.loads(json.dumps(comparison.to_dict()))
    assert json.loads(iosim.predict(kernel="fa2", seq_len=256).to_json())["kernel"]["name"] == "fa2"
    pytest.importorskip("plotly")
    assert comparison.plot().to_dict() == comparison.figure().to_dict()


def test_a_whole_model_has_a_price_and_is_named_like_elsewhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--gpu", "a100", "--seq-len", "128", "--layers", "2"]
    assert main(["model", "--model", "gpt2", *arguments, "--price", "a100=3.6"]) == 0
    out = capsys.readouterr().out
    run = iosim.model("gpt2", gpu="a100", seq_len=128, layers=2, price="a100=3.6").runs[0]
    assert run.dollars_per_million_tokens == pytest.approx(1e-3 * run.traffic.time_s / 128 * 1e6)
    assert f"{run.dollars_per_million_tokens:,.3g} dollars per million tokens" in out
    first = out.split("\n\n")[0]
    assert f"cost, in dollars: {run.dollars_per_million_tokens:,.3g} (prefill, 128 tokens)" in first
    refused(capsys, ["model", *arguments], "NAME is missing")
    refused(
        capsys, ["model", "gpt2", *arguments, "--price", "l4=1"], "--price l4=1", "a100-sxm-80gb"
    )
    refused(capsys, ["model", "gpt2", *arguments, "--price", "a100"], "--price 'a100'")


@pytest.mark.parametrize("model", ["gpt2", "gemma-2-9b"])
def test_a_whole_model_has_the_longest_context_of_its_decoding(model: str) -> None:
    run = iosim.model(model, gpu="t4", context=64, layers=2, batch=3).runs[-1]
    point = iosim.decode(model=model, gpu="t4", context=64, layers=2, batch=3, dtype=run.dtype)
    assert run.longest_context == point.points[0].longest_context


@pytest.mark.parametrize("cache", ["fp8"])
def test_a_cache_of_another_type_has_a_kernel_by_default(cache: str) -> None:
    study = iosim.decode(gpu="h100,b200", cache_dtype=cache, context=1024, layers=1)
    assert {point.prediction.kernel.name for point in study.points} == {"flashinfer"}


@pytest.mark.parametrize(
    "call",
    [
        {"model": "llama-3-8b", "gpu": "h100", "batch": 8},
        {"gpu": "a100", "batch": 4},
        {"model": "gpt-oss-20b", "gpu": "h100"},
    ],
)
def test_the_longest_context_is_the_last_that_fits(call: dict[str, object]) -> None:
    point = iosim.decode(context=1024, **call).points[0]
    longest = point.longest_context
    assert longest
    for context, fits in ((longest, True), (longest + 1, False)):
        assert iosim.decode(context=context, **call).points[0].fits is fits
