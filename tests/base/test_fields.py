"""One table of fields: options, JSON, printed command lines and the documentation follow from it."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import every
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripts import ROOT, load_script

import iosim
from iosim.base.errors import InputError
from iosim.base.fields import About, Kind, fields_of
from iosim.catalog.libraries import resolve
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.kernel.overrides import OVERRIDES, Overrides
from iosim.kernel.schedule import Direction, Order, Scheduler
from iosim.kernel.unit import MatrixUnit
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import FIELDS, ProblemFields, length_options, problem_options
from iosim.studies import requests
from iosim.studies.compare import compare
from iosim.studies.compare.points import CaseGrid
from iosim.studies.tiles.pick import rejection, tile_space

COMMON: dict[str, Any] = {
    "batch": st.integers(1, 3),
    "heads": st.sampled_from((4, 8)),
    "kv_heads": st.sampled_from((None, 1, 2, 4)),
    "seq_q": st.integers(1, 300),
    "seq_k": st.none() | st.integers(1, 300),
    "head_dim": st.sampled_from((16, 64, 72)),
    "head_dim_v": st.sampled_from((None, 32, 64)),
    "dtype": st.sampled_from(("fp32", "tf32", "fp16", "bfloat16", "fp8")),
    "accumulate": st.sampled_from(("fp32", "fp16", "fp64")),
    "output": st.sampled_from((None, "fp32", "bf16")),
    "layout": st.sampled_from(("bhsd", "bshd")),
}


@st.composite
def problems(draw: st.DrawFn) -> AttentionProblem:
    """Problems of every field that the command line knows, but for files."""
    values = {name: draw(field) for name, field in COMMON.items()}
    family = draw(st.sampled_from(("interval", "interval", "blocks", "bias", "cache", "packed")))
    mask = draw(st.sampled_from(("none", "causal", "window")))
    if family != "blocks":
        values["mask"] = mask
        if mask == "window":
            values["window"] = draw(st.integers(0, 200))
        if mask != "none" and family != "packed":
            values["offset"] = draw(st.none() | st.integers(-50, 50))
    if family == "blocks":
        words = ("butterfly", "strided", "window+global", "window+first")
        values |= {"seq_k": None, "mask": draw(st.sampled_from(words))}
        values["mask_block"] = draw(st.sampled_from((None, 16, 64)))
        if values["mask"].startswith("window"):
            values |= {
                "window": draw(st.integers(0, 100)),
                "global_tokens": draw(st.sampled_from((None, 0, 32))),
            }
        else:
            values["mask_stride"] = draw(st.sampled_from((None, 2, 4)))
    if family == "cache":
        values |= {"page_size": draw(st.none() | st.sampled_from((16, 256)))}
        if draw(st.booleans()):
            values |= {
                "latent_kv": True,
                "kv_heads": draw(st.sampled_from((None, 1, 2))),
                "head_dim_v": 16,
            }
        return AttentionProblem(**values)
    values["passes"] = draw(st.sampled_from(("fwd", "bwd", "fwd+bwd")))
    values["dropout"] = draw(st.sampled_from((0.0, 0.1, 0.3)))
    if family == "packed":
        lens = draw(st.lists(st.integers(1, 90), min_size=1, max_size=4))
        keys = draw(
            st.none() | st.lists(st.integers(1, 90), min_size=len(lens), max_size=len(lens))
        )
        values |= {"batch": 1, "seq_q": 1, "seq_k": None, "seq_lens": tuple(lens)}
        values["seq_lens_k"] = None if keys is None else tuple(keys)
    if family == "bias":
        values |= {
            "bias": draw(st.sampled_from(("none", "full", "alibi"))),
            "key_padding": draw(st.booleans()),
        }
        if mask != "none":
            values["mask_storage"] = draw(st.sampled_from(("implicit", "bool", "additive")))
        if values["bias"] == "full":
            values |= {
                "bias_shared": draw(st.sampled_from((None, "none", "heads", "both"))),
                "bias_dtype": draw(st.sampled_from((None, "fp32", "bf16"))),
                "bias_grad": draw(st.booleans()),
            }
    return AttentionProblem(**values)


@pytest.mark.slow
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(problem=problems(), kernel=st.sampled_from(("flash", "naive", "mla", "flash1")))
def test_the_printed_command_gives_the_row(
    problem: AttentionProblem, kernel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    request = CaseGrid.of(("l4",), (kernel,), (problem,), method="bounds")
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


@pytest.mark.parametrize(
    "values",
    [
        {"page_size": 256},
        {"latent_kv": True, "heads": 16, "head_dim": 576, "head_dim_v": 512, "page_size": 64},
    ],
)
def test_rows_over_a_cache_list_a_command_that_gives_them(
    values: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    problem = AttentionProblem(**({"heads": 32, "head_dim": 128} | values), seq_q=1, seq_k=4096)
    comparison = compare(
        [problem], ["mla" if problem.latent_kv else "fa2"], ["a100"], method="bounds"
    )
    (point,) = comparison.points
    assert main(comparison.commands[point.id].split()[1:]) == 0
    (alone,) = json.loads(capsys.readouterr().out)["predictions"]
    assert alone["totals"]["l2"]["read"] == point.prediction.total("l2", "read")


def test_every_field_says_all_of_itself() -> None:
    names = {f.name for f in fields(AttentionProblem) if f.init}
    assert set(FIELDS) == names
    assert set(OVERRIDES) == {f.name for f in fields(Overrides)}
    options = [field.option for field in (*FIELDS.values(), *OVERRIDES.values()) if field.option]
    assert len(set(options)) == len(options)
    assert [n for n, field in FIELDS.items() if field.option is None] == ["mask_blocks"]
    assert len({field.key for field in FIELDS.values()}) == len(FIELDS)
    words = {"order": Order, "direction": Direction, "scheduler": Scheduler}
    assert all(
        OVERRIDES[name].words == tuple(w.value for w in enum) for name, enum in words.items()
    )


def test_a_fields_range_is_the_one_that_is_said() -> None:
    for name, field in FIELDS.items():
        if field.kind is Kind.WHOLE and field.high < 1 << 31:
            with pytest.raises(
                InputError, match=f"^{name} {field.high + 1} .* {field.low} to {field.high}$"
            ):
                AttentionProblem(**{name: field.high + 1})


def test_python_help_names_every_field() -> None:
    text = str(AttentionProblem.__doc__)
    assert all(f"        {name}: {field.help}" in text for name, field in FIELDS.items())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"tile": "128x64"}, "tile '128x64' is no pair"),
        ({"tile": (128,)}, "tile (128,) is no pair"),
        ({"tile": (128, 5000)}, "tile 128x5000 is out of range"),
        ({"warps": "4"}, "warps '4' is not a whole number"),
        ({"stages": 2.0}, "stages 2.0 is not a whole number"),
        ({"heavy_first": 1}, "heavy_first 1 is no truth value"),
        ({"order": 3}, "order '3' is not known"),
        ({"registers": 300}, "registers 300 is out of range"),
        ({"append_kv": None}, "append_kv None is no truth value"),
        ({"splits": 0}, "splits 0 is out of range"),
    ],
)
def test_settings_of_a_wrong_type_are_refused_where_they_are_given(
    value: dict[str, Any], text: str
) -> None:
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
    request = CaseGrid.of(("l4",), ("flash",), (problem,), method="bounds")
    assert request.report_line().startswith("# ")


def test_the_table_of_fields_has_a_row_for_each() -> None:
    docs = ROOT / "docs" / "generated"
    if not (docs / "make_fields.py").is_file():
        pytest.skip("iosim runs from an install without its docs")
    text = load_script(docs / "make_fields.py").text()
    names = [name for owner in (ProblemFields, Overrides) for name in fields_of(owner)]
    assert [name for name in names if f"| `{name}` |" not in text] == []


# --- errors belong to their layer -------------------------------------------------------------------------------------


def test_a_message_names_the_field_in_python_and_the_option_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for values, words, field, option in (
        ({"page_size": 48}, "--page-size 48", "page_size 48", "--page-size 48"),
        ({"bias": "full"}, "--bias full", "bias=full", "--bias full"),
        (
            {"latent_kv": True, "head_dim_v": 32},
            "--latent-kv --head-dim-v 32",
            "latent_kv=True",
            "--latent-kv",
        ),
        ({"seq_q": 0}, "--seq-len 0", "seq_q 0", "--seq-len 0"),
        (
            {"passes": "bwd", "page_size": 256},
            "--pass bwd --page-size 256",
            "passes 'bwd'",
            "--pass 'bwd'",
        ),
    ):
        with pytest.raises(InputError) as refused:
            predict(AttentionProblem(**values), "fa2", "a100")
        assert field in str(refused.value)
        assert not re.search(r"--[a-z]|`", str(refused.value))
        assert main(["predict", "--kernel", "fa2", "--gpu", "a100", *words.split()]) == 2
        assert option in capsys.readouterr().err


def test_no_room_below_the_commands_raises_an_error_that_names_an_option() -> None:
    package = Path(iosim.__file__).parent
    texts = {p: p.read_text() for p in package.rglob("*.py")}
    below = {
        p: t
        for p, t in texts.items()
        if p.parent.name not in ("commands", "cuda", "measure", "validate")
    }
    named = re.compile(r"(?:InputError|unknown_name)\((?:[^()]|\([^()]*\))*?[\"' ]--[a-z]")
    assert [f"{p.name}: {m[0][:80]}" for p, t in below.items() for m in named.finditer(t)] == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("HBM",), "level 'HBM' is not known; accepted: hbm, l2, smem"),
        (("hbm", "reads"), "direction 'reads' is not known; accepted: read, write"),
    ],
)
def test_a_total_of_what_there_is_not_is_refused(arguments: tuple[str, ...], text: str) -> None:
    with pytest.raises(InputError, match=text):
        predict(AttentionProblem(seq_q=64), "fa2", "a100").total(*arguments)


def test_hbm_bytes_are_not_known_from_bounds_alone() -> None:
    prediction = predict(AttentionProblem(seq_q=64), "fa2", "a100", method="bounds")
    assert prediction.total("l2") > 0
    with pytest.raises(InputError, match="with method bounds"):
        prediction.total("hbm")


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("seq_q", "4k", 4096),
        ("seq_k", " 1m ", 1 << 20),
        ("offset", "-2k", -2048),
        ("dropout", "0.25", 0.25),
        ("mask_block", "64", (64, 64)),
        ("mask_block", "64x128", (64, 128)),
        ("seq_lens", "512,1k", (512, 1024)),
        ("key_padding", "true", True),
        ("key_padding", "0", False),
        ("dtype", "bf16", "bf16"),
        ("tile", "128X64", (128, 64)),
    ],
)
def test_a_field_reads_its_text(name: str, text: str, value: object) -> None:
    assert {**FIELDS, **OVERRIDES}[name].read(text, "value") == value


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("seq_q", "-1", "'-1' is not a size"),
        ("seq_q", "4q", "'4q' is not a size"),
        ("tile", "64", "not of the form QxK"),
        ("tile", "64x64x2", "'64x64x2' is not of the form QxK"),
        ("dropout", "1", "'1' is out of range"),
        ("dropout", "x", "'x' is out of range; accepted: 0 <= P < 1"),
        ("seq_lens", "1:2", "'1:2' is not a range"),
    ],
)
def test_a_field_refuses_a_text_by_what_it_is_of(name: str, text: str, why: str) -> None:
    with pytest.raises(InputError, match=re.escape(why)) as refused:
        {**FIELDS, **OVERRIDES}[name].read(text, "--x")
    assert str(refused.value).startswith("--x '")


# --- tiles that cannot run --------------------------------------------------------------------------------------------

LONG = AttentionProblem(heads=4, seq_q=512)


@pytest.mark.parametrize(
    ("kernel", "gpu", "settings", "text"),
    [
        (
            "flash",
            "a100",
            {"tile": (16, 16), "warps": 8},
            "block_q 16 gives 8 warps only 2 rows each",
        ),
        ("fa2", "a100", {"tile": (64, 64), "warps": 8}, "accepted: block_q a multiple of 128"),
        ("flash", "t4", {"stages": 2}, "2 stages need asynchronous copies"),
        ("triton", "a100", {"tile": (96, 48)}, "block_q 96 is no power of two"),
        ("triton", "a100", {"tile": (64, 8)}, "block_k 8: tl.dot needs 16"),
        ("flex", "a100", {"warps": 6}, "warps 6 is no power of two"),
    ],
)
def test_predict_refuses_a_tile_that_cannot_run(
    kernel: str, gpu: str, settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(InputError, match=text):
        predict(LONG, kernel, gpu, method="bounds", overrides=Overrides(**settings))


@pytest.mark.parametrize("stride", every(6))
def test_predict_and_tiles_refuse_the_same_tiles(stride: int) -> None:
    for passes in ("fwd", "bwd"):
        problem = LONG.with_(passes=passes)
        for tile in list(tile_space())[::stride]:
            overrides = Overrides(
                tile=(tile.block_q, tile.block_k), warps=tile.warps, stages=tile.stages
            )
            try:
                resolve("flash", problem, load_profile("t4"), overrides)
                refused = ""
            except InputError as error:
                refused = str(error)
            reason = rejection(tile, problem, load_profile("t4"), MatrixUnit.MMA_SYNC)
            assert bool(refused) == bool(reason), (tile, refused, reason)


def test_a_tile_runs_where_its_rule_does_not_hold() -> None:
    few = AttentionProblem(
        heads=8, kv_heads=1, seq_q=1, seq_k=512
    )  # warps share a group's rows and divide the keys
    for problem, kernel, by_hand in (
        (few, "flash", {"tile": (16, 64), "warps": 4, "pack_group": True}),
        (LONG.with_(dtype="fp32", output="fp32"), "flash", {"tile": (16, 16), "warps": 8}),
        (LONG, "cutlass", {"tile": (32, 128), "warps": 4}),  # warps divide queries and keys
    ):
        assert (
            predict(problem, kernel, "a100", method="bounds", overrides=Overrides(**by_hand)).total(
                "l2"
            )
            > 0
        )


NUMBERS = {
    f"{about.name} {n}": about
    for n, table in enumerate(
        (FIELDS, *(t for t in vars(requests).values() if isinstance(t, dict)))
    )
    for about in table.values()
    if isinstance(about, About) and about.kind in (Kind.WHOLE, Kind.NUMBER)
}


@pytest.mark.parametrize("about", NUMBERS.values(), ids=NUMBERS)
def test_the_ends_of_a_range_are_accepted_and_nothing_beyond(about: About) -> None:
    step = 1 if about.kind is Kind.WHOLE else 1e-3
    for end, beyond in ((about.low, -step), (about.high, step)):
        if end is None or abs(end) == float("inf"):
            continue
        assert about.check(end) == end
        with pytest.raises(InputError, match=about.name):
            about.check(end + beyond)
