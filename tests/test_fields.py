"""One table of fields: options, JSON, printed command lines and the documentation follow from it."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iosim.base.errors import InputError
from iosim.base.fields import Kind
from iosim.commands.cli import main
from iosim.kernel.overrides import OVERRIDES, Overrides
from iosim.kernel.schedule import Direction, Order, Scheduler
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import FIELDS, length_options, problem_options
from iosim.studies.compare import compare
from iosim.studies.report.request import ReportRequest

COMMON: dict[str, Any] = {
    "batch": st.integers(1, 3), "heads": st.sampled_from((4, 8)), "kv_heads": st.sampled_from((None, 1, 2, 4)),
    "seq_q": st.integers(1, 300), "seq_k": st.none() | st.integers(1, 300),
    "head_dim": st.sampled_from((16, 64, 72)), "head_dim_v": st.sampled_from((None, 32, 64)),
    "dtype": st.sampled_from(("fp32", "tf32", "fp16", "bfloat16", "fp8")),
    "accumulate": st.sampled_from(("fp32", "fp16", "fp64")), "output": st.sampled_from((None, "fp32", "bf16")),
    "layout": st.sampled_from(("bhsd", "bshd")),
}  # fmt: skip


@st.composite
def problems(draw: st.DrawFn) -> AttentionProblem:
    """Problems of every field that the command line knows, but for files."""
    values = {name: draw(one) for name, one in COMMON.items()}
    family = draw(st.sampled_from(("interval", "interval", "blocks", "bias", "cache", "packed")))
    mask = draw(st.sampled_from(("none", "causal", "window")))
    if family != "blocks":
        values["mask"] = mask
        if mask == "window":
            values["window"] = draw(st.integers(0, 200))
        if mask != "none" and family != "packed":
            values["offset"] = draw(st.none() | st.integers(-50, 50))
    if family == "blocks":
        values |= {"seq_k": None, "mask": draw(st.sampled_from(("butterfly", "strided", "window+global")))}
        values["mask_block"] = draw(st.sampled_from((None, 16, 64)))
        if values["mask"] == "window+global":
            values |= {"window": draw(st.integers(0, 100)), "global_tokens": draw(st.sampled_from((None, 0, 32)))}
        else:
            values["mask_stride"] = draw(st.sampled_from((None, 2, 4)))
    if family == "cache":
        values |= {"page_size": draw(st.none() | st.sampled_from((16, 256)))}
        if draw(st.booleans()):
            values |= {"latent_kv": True, "kv_heads": draw(st.sampled_from((None, 1, 2))), "head_dim_v": 16}
        return AttentionProblem(**values)
    values["passes"] = draw(st.sampled_from(("fwd", "bwd", "fwd+bwd")))
    values["dropout"] = draw(st.sampled_from((0.0, 0.1, 0.3)))
    if family == "packed":
        lens = draw(st.lists(st.integers(1, 90), min_size=1, max_size=4))
        keys = draw(st.none() | st.lists(st.integers(1, 90), min_size=len(lens), max_size=len(lens)))
        values |= {"batch": 1, "seq_q": 1, "seq_k": None, "seq_lens": tuple(lens)}
        values["seq_lens_k"] = None if keys is None else tuple(keys)
    if family == "bias":
        values |= {"bias": draw(st.sampled_from(("none", "full", "alibi"))), "key_padding": draw(st.booleans())}
        if mask != "none":
            values["mask_storage"] = draw(st.sampled_from(("implicit", "bool", "additive")))
        if values["bias"] == "full":
            values |= {"bias_shared": draw(st.sampled_from((None, "none", "heads", "both"))),
                       "bias_dtype": draw(st.sampled_from((None, "fp32", "bf16"))),
                       "bias_grad": draw(st.booleans())}  # fmt: skip
    return AttentionProblem(**values)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=problems(), kernel=st.sampled_from(("flash", "naive", "mla", "flash1")))
def test_the_printed_command_gives_the_row(
    problem: AttentionProblem, kernel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    request = ReportRequest.of(("l4",), (kernel,), (problem,), method="bounds")
    words = request.predict_line(request.gpus[0], kernel, problem).split()
    assert AttentionProblem.from_dict(problem.to_dict()).to_dict() == problem.to_dict()
    try:
        row = predict(problem, kernel, "l4", method="bounds")
    except InputError:
        row = None
    assert main(words[1:]) == (2 if row is None else 0)
    if row is None:
        assert capsys.readouterr().err.startswith("iosim: ")
        return
    (alone,) = json.loads(capsys.readouterr().out)["predictions"]
    assert alone == json.loads(json.dumps(row.to_dict()))


@pytest.mark.parametrize("values", [
    {"page_size": 256}, {"latent_kv": True, "heads": 16, "head_dim": 576, "head_dim_v": 512, "page_size": 64},
])  # fmt: skip
def test_rows_over_a_cache_list_a_command_that_gives_them(
    values: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    problem = AttentionProblem(**({"heads": 32, "head_dim": 128} | values), seq_q=1, seq_k=4096)
    made = compare([problem], ["mla" if problem.latent_kv else "fa2"], ["a100"], method="bounds")
    (point,) = made.points
    assert main(made.commands[point.id].split()[1:]) == 0
    (alone,) = json.loads(capsys.readouterr().out)["predictions"]
    assert alone["totals"]["l2"]["read"] == point.prediction.total("l2", "read")


def test_every_field_says_all_of_itself() -> None:
    names = {f.name for f in fields(AttentionProblem) if f.init}
    assert set(FIELDS) == names
    assert set(OVERRIDES) == {f.name for f in fields(Overrides)}
    options = [said.option for said in (*FIELDS.values(), *OVERRIDES.values()) if said.option]
    assert len(set(options)) == len(options)
    assert [n for n, said in FIELDS.items() if said.option is None] == ["mask_blocks"]
    assert len({said.key for said in FIELDS.values()}) == len(FIELDS)
    words = {"order": Order, "direction": Direction, "scheduler": Scheduler}
    assert all(OVERRIDES[name].words == tuple(w.value for w in enum) for name, enum in words.items())


def test_a_fields_range_is_the_one_that_is_said() -> None:
    for name, said in FIELDS.items():
        if said.kind is Kind.WHOLE and said.high < 1 << 31:
            with pytest.raises(InputError, match=f"^{name} {said.high + 1} .* {said.low} to {said.high}$"):
                AttentionProblem(**{name: said.high + 1})


def test_python_help_names_every_field() -> None:
    text = str(AttentionProblem.__doc__)
    assert all(f"        {name}: {said.help}" in text for name, said in FIELDS.items())


@pytest.mark.parametrize(("value", "text"), [
    ({"tile": "128x64"}, "tile '128x64' is no pair"), ({"tile": (128,)}, "tile (128,) is no pair"),
    ({"tile": (128, 5000)}, "tile 128x5000 is out of range"), ({"warps": "4"}, "warps '4' is not a whole number"),
    ({"stages": 2.0}, "stages 2.0 is not a whole number"), ({"heavy_first": 1}, "heavy_first 1 is no truth value"),
    ({"order": 3}, "order '3' is not known"), ({"registers": 300}, "registers 300 is out of range"),
    ({"append_kv": None}, "append_kv None is no truth value"), ({"splits": 0}, "splits 0 is out of range"),
])  # fmt: skip
def test_settings_of_a_wrong_type_are_refused_where_they_are_given(value: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as refused:
        Overrides(**value)
    assert str(refused.value).startswith(text)
    assert "accepted" in str(refused.value)


def test_options_of_a_problem_without_a_line_are_none() -> None:
    from iosim.problem.masks.blocks import BlockMask

    diagonal = np.arange(2)
    mask = BlockMask.of_pairs(64, 64, 32, 32, diagonal, diagonal)
    problem = AttentionProblem(seq_q=64, mask="blocks", mask_blocks=mask)
    with pytest.raises(InputError, match="mask_blocks"):
        problem_options(problem)
    assert length_options(problem) == ["--seq-len", "64"]
    request = ReportRequest.of(("l4",), ("flash",), (problem,), method="bounds")
    assert request.report_line().startswith("# ")
