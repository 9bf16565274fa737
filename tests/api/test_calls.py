"""The functions of `import iosim`: keywords as the command line's options, errors that name them, results that show
themselves in a notebook as the command does in a terminal."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from html import unescape
from typing import Any

import pytest
from effort import quick_every
from public_docs import wanting
from scripts import ROOT, load_script

import iosim
from iosim.api import keywords
from iosim.base.errors import InputError
from iosim.commands.cli import build_parser, main
from iosim.hardware.quantities import QUANTITIES
from iosim.kernel.overrides import OVERRIDES
from iosim.problem.fields import FIELDS
from iosim.show.shown import Shown
from iosim.show.tables import Table
from iosim.studies import requests

pytestmark = pytest.mark.usefixtures("replays_once")

SMALL: dict[str, Any] = {"heads": 2, "seq_len": 256, "head_dim": 64}
COMMAND_OF = {
    "predict": "predict",
    "compare": "compare",
    "pick_tiles": "tiles",
    "orders": "orders",
    "explain": "explain",
    "formula": "formula",
    "check_claim": "check-claim",
    "decode": "decode",
    "latency": "latency",
    "ring": "ring",
    "model": "model",
    "train_memory": "train-memory",
}
"""Function -> command of the same options."""
OF_OUTPUT = {
    "help",
    "format",
    "out",
    "html",
    "interactive",
    "force",
    "csv",
    "json",
    "top",
    "rejected",
    "triton",
    "steps",
    "gone",
    "latex",
    "bound",
    "frontier",
    "quiet",
    "columns",
    "sort",
}
"""Options that say what a command prints of its result; in Python the result does."""
OF_PYTHON = {"problem", "overrides", "library", "mask_blocks"}
"""Parameters that only Python can give."""
OF_A_LAUNCH = {keywords.keyword_of(about) for about in requests.CODE.values()} | {"code"}
"""Keywords of a kernel that is known by its code: explain is asked for the loops of one on the command line alone."""
RESULTS = {
    "prediction": lambda: iosim.predict(kernel="fa2", gpu="l4", **SMALL),
    "differences": lambda: iosim.predict(
        kernel="flash",
        gpu="l4",
        against=iosim.predict(kernel="fa2", gpu="l4", **SMALL),
        fail_above="l2=5%",
        **SMALL,
    ),
    "bounds": lambda: iosim.predict(
        kernel="naive", gpu="l4", method="bounds", passes="fwd+bwd", **SMALL
    ),
    "comparison": lambda: iosim.compare(kernel="naive,fa2,fa3", gpu=["l4", "a100"], **SMALL),
    "explanation": lambda: iosim.explain(kernel="fa2", gpu="l4", **SMALL),
    "decoding": lambda: iosim.decode(["l4", "t4"], context="1k,2k", layers=2, dtype="fp16"),
    "latencies": lambda: iosim.latency(
        stack=["vllm", "sglang"], gpu="a100", batch_contexts="1k,3k", kv_heads=8
    ),
    "whole models": lambda: iosim.model("gpt2,qwen3-8b", "l4", seq_len=256, layers=2, fused=True),
    "ring": lambda: iosim.ring(
        num_gpus=2, gpu="h100", schedule="ring,zigzag", causal=True, **SMALL
    ),
    "training": lambda: iosim.train_memory("l4", width=256, layers=2),
    "frontier": lambda: iosim.train_memory("l4", layers=2).frontier("batch", [1, 64], "1k,8k"),
    "claim": lambda: iosim.check_claim(hbm="276.8MB", gpu="a100", seq_len=1024),
    "formula": lambda: iosim.formula("fa2", heads=2, head_dim=64, causal=True),
}
COMMANDS = {
    "prediction": "predict --kernel fa2 --gpu l4 --heads 2 --seq-len 256 --head-dim 64",
    "explanation": "explain --kernel fa2 --gpu l4 --heads 2 --seq-len 256 --head-dim 64",
    "decoding": "decode --gpu l4,t4 --context 1k,2k --layers 2 --dtype fp16",
    "latencies": "latency --stack vllm,sglang --gpu a100 --batch-contexts 1k,3k --kv-heads 8",
    "whole models": "model gpt2,qwen3-8b --gpu l4 --seq-len 256 --layers 2 --fused",
    "ring": "ring --num-gpus 2 --gpu h100 --schedule ring,zigzag --causal --heads 2 --seq-len 256 --head-dim 64",
    "training": "train-memory --gpu l4 --width 256 --layers 2",
    "frontier": "train-memory --gpu l4 --layers 2 --frontier batch --batch 1,64 --seq-len 1k,8k",
    "claim": "check-claim --hbm 276.8MB --gpu a100 --seq-len 1024",
    "formula": "formula fa2 --heads 2 --head-dim 64 --causal",
    "comparison": "compare --kernel naive,fa2,fa3 --gpu l4,a100 --heads 2 --seq-len 256 --head-dim 64",
}


NO_FIGURES = ("formula", "claim", "differences")


@pytest.fixture(scope="module")
def results() -> dict[str, Shown]:
    return {name: make() for name, make in RESULTS.items()}


# --- keywords ---------------------------------------------------------------------------------------------------------


def test_the_call_that_the_package_opens_with() -> None:
    p = iosim.predict(kernel="fa2", gpu="h100", heads=32, seq_len=4096, head_dim=128, causal=True)
    problem = iosim.AttentionProblem(heads=32, seq_q=4096, head_dim=128, mask="causal")
    typed = iosim.predict(problem, "fa2", "h100")
    assert p.to_dict() == typed.to_dict()
    assert (p.hbm.read, p.hbm.write) == (p.total("hbm", "read"), p.total("hbm", "write"))
    assert (p.l2.read, p.l2.total) == (p.total("l2", "read"), p.total("l2"))
    assert p.time_s == p.time.total_s
    assert set(p.to_pandas()["tensor"]) >= {"Q", "K", "V", "O"}


def test_keywords_and_the_command_line_ask_for_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    p = iosim.predict(
        kernel="fa2",
        gpu="l4",
        seq_len="1k",
        tile="64x64",
        window=100,
        passes="bwd",
        output_dtype="bf16",
    )
    line = "predict --kernel fa2 --gpu l4 --seq-len 1k --tile 64x64 --window 100 --pass bwd --output-dtype bf16"
    assert main([*line.split(), "--format", "json"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)["predictions"]
    assert json.loads(json.dumps(p.to_dict())) == printed


def options_of(command: str) -> dict[str, Any]:
    """A command's options in Python's spelling, and their defaults."""
    parser = build_parser(command)
    (choices,) = (a.choices for a in parser._actions if a.choices and a.dest == "command")
    defaults = {}
    for action in choices[command]._actions:  # type: ignore[index,call-overload]
        longest = (
            [o for o in action.option_strings if o.startswith("--")]
            or action.option_strings[:1]
            or [f"--{action.dest}"]
        )
        if action.help is not None and action.help != "==SUPPRESS==":
            name = longest[0][2:].removeprefix("no-").replace("-", "_")
            defaults["passes" if name == "pass" else name] = action.default
    return {name: default for name, default in defaults.items() if name not in OF_OUTPUT}


@pytest.mark.parametrize("function", COMMAND_OF)
def test_a_functions_keywords_are_its_commands_options(function: str) -> None:
    parameters = inspect.signature(getattr(iosim, function)).parameters
    options = options_of(COMMAND_OF[function])
    taken = set(parameters)
    if function == "explain":  # what says where the time goes is asked of a prediction
        options = {
            n: default
            for n, default in options.items()
            if n not in ("time", "terms", "clocks", "launched")
        }
        options = {
            n: default for n, default in options.items() if n in taken or n not in OF_A_LAUNCH
        }
    # A kernel that is known by its code has functions of its own.
    if function in ("predict", "compare", "pick_tiles"):
        taken |= {n for n in inspect.signature(iosim.predict_code).parameters if n in options}
    if function == "pick_tiles":  # what is asked of one tile is a function of its own
        taken |= set(inspect.signature(iosim.study_tile).parameters)
    if function == "model":  # --model is another way to type NAME,...
        del options["model"]
    if (
        function == "orders"
    ):  # the ranking has its code, its first orders; constants are checked by another function
        options = {
            n: default
            for n, default in options.items()
            if n not in ("top", "code", "check_constant")
        }
    assert taken - OF_PYTHON == set(options)


def test_every_field_is_a_keyword_with_the_options_default_and_a_line_of_the_docstring() -> None:
    parameters = inspect.signature(iosim.predict).parameters
    text = inspect.getdoc(iosim.predict) or ""
    for about in (*FIELDS.values(), *OVERRIDES.values()):
        name = keywords.keyword_of(about)
        assert parameters[name].default == (about.default if about.usual is None else about.usual)
        assert f"    {name}: {about.help}" in text
    assert "**options" not in text


def test_the_types_that_editors_read_are_those_of_the_fields() -> None:
    if not (ROOT / "docs" / "generated" / "make_keywords.py").is_file():
        pytest.skip("iosim runs from an install without its docs")
    written = load_script("docs/generated/make_keywords.py").text()
    assert written == (ROOT / "iosim" / "api" / "typed.pyi").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("keywords_given", "text"),
    [
        ({"hedas": 3}, "no keyword 'hedas'; did you mean heads"),
        ({"seqlen": 3}, "no keyword 'seqlen'; did you mean seq_len"),
        ({"nonsense": 3}, "no keyword 'nonsense'; accepted: problem, kernel, gpu"),
        ({"seq_len": 0}, "seq_len 0 is out of range"),
        ({"seq_q": 0}, "seq_len 0 is out of range"),
        ({"seq_len": "4q"}, "seq_len '4q' is not a size"),
        ({"seq_len": "1k,2k"}, "are 2 lengths; accepted: one"),
        ({"gpu": "l4", "profile": "a100"}, "gpu is given twice, as gpu and profile"),
        ({"gpu": "h10"}, "did you mean h100"),
        ({"gpu": ["l4", "t4"]}, "are 2; accepted: one, and iosim.compare"),
        ({"tile": "64y64"}, "tile '64y64' is not of the form QxK"),
        ({"smem": -1}, "smem -1 is out of range"),
        ({"l2": "hot"}, "l2 'hot' is not known; accepted: cold, warm"),
        ({"causal": True, "mask": "butterfly"}, "causal=True contradicts mask butterfly"),
        ({"output_dtype": "int3"}, "output_dtype 'int3' is not known"),
        ({"problem": iosim.AttentionProblem(), "heads": 3}, "heads 3 contradicts problem"),
        ({"problem": 5}, "problem 5 is no AttentionProblem"),
        ({"causal": "yes"}, "causal 'yes' is no value; accepted: bool"),
        ({"gpu": None}, "gpu None is no value; accepted: str"),
        ({"latent_kv": 1}, "latent_kv 1 is no value; accepted: bool"),
        ({"mask": ""}, "mask '' is not known"),
        ({"seq_len": []}, "seq_len [] is no length"),
        ({"method": "replay", "zest": 3}, "no keyword 'zest'; accepted"),
        (
            {"seq_len_k": 8192},
            "seq_len_k 8192 leaves open how many tokens are new; accepted with it: seq_len 1",
        ),
        ({"context": "1k"}, "no keyword 'context'; accepted by: iosim.decode"),
        (
            {"kernel": iosim.Kernel("mine", "flash", iosim.Tile(64, 32)), "warps": 4},
            "warps is a setting over",
        ),
        ({"overrides": iosim.Overrides(), "warps": 4}, "warps contradicts overrides"),
    ],
)
def test_a_wrong_keyword_is_refused_by_its_name(keywords_given: dict[str, Any], text: str) -> None:
    with pytest.raises(iosim.InputError) as refused:
        iosim.predict(**keywords_given)
    assert text in str(refused.value)
    assert "`" not in str(refused.value)


@pytest.mark.parametrize(
    ("function", "keywords_given", "text"),
    [
        ("ring", {"num_gpus": 0}, "num_gpus 0 is out of range; accepted: 1 to 512"),
        ("train_memory", {"heads": 0}, "heads 0 is out of range"),
        ("train_memory", {"reserve": -1}, "reserve -1 is out of range"),
        ("decode", {"batch_contexts": "1k", "batch": 2}, "batch 2 contradicts batch_contexts"),
    ],
)
def test_a_keyword_out_of_range_is_refused_by_its_name(
    function: str, keywords_given: dict[str, Any], text: str
) -> None:
    with pytest.raises(iosim.InputError, match=text):
        getattr(iosim, function)(**keywords_given)


def test_whole_numbers_may_be_the_command_lines_text() -> None:
    text = iosim.train_memory("l4", heads="4", width="256", layers=2, reserve="1m", vocabulary="1k")
    assert (
        text.to_dict()
        == iosim.train_memory(
            "l4", heads=4, width=256, layers=2, reserve=1 << 20, vocabulary=1024
        ).to_dict()
    )


FUNCTIONS = (
    "predict",
    "compare",
    "pick_tiles",
    "study_tile",
    "orders",
    "explain",
    "formula",
    "decode",
    "ring",
    "train_memory",
    "check_claim",
    "latency",
    "sweep",
    "model",
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_value_of_a_wrong_type_is_refused_by_the_keywords_name(function: str) -> None:
    call = getattr(iosim, function)
    needed = {
        "study_tile": {"tile": "64x64"},
        "check_claim": {"hbm": "1MB"},
        "formula": {"name": "flash"},
        "model": {"models": "gpt2"},
    }
    names = [
        n for n, p in inspect.signature(call).parameters.items() if p.kind is not p.VAR_KEYWORD
    ]
    if function == "sweep":
        names += ["gpu", "kernel", "seq_len", "heads", "causal", "prefix"]
    for name in names:
        for value in (b"x", object(), [object()]):
            with pytest.raises(iosim.InputError) as refused:
                call(**{**needed.get(function, {}), name: value})
            keyword = keywords.KEYWORD_OF.get(name, name)
            assert any(
                word in str(refused.value)
                for word in (name, keyword, name.replace("_", " "), "one claim")
            ), name


def test_names_and_lengths_may_be_lists_or_the_command_lines_text() -> None:
    texts = iosim.compare(kernel="naive,fa2", gpu="l4,t4", seq_len="256,512", heads=2, head_dim=64)
    lists = iosim.compare(
        kernel=["naive", "fa2"], gpu=["l4", "t4"], seq_len=[256, "512"], heads=2, head_dim=64
    )
    assert texts.to_dict() == lists.to_dict()
    problems = [iosim.AttentionProblem(heads=2, seq_q=n) for n in (256, 512)]
    assert iosim.compare(problems, "naive,fa2", "l4,t4").to_dict() == texts.to_dict()


def test_a_prediction_explains_itself_as_its_keywords_do() -> None:
    p = iosim.predict(kernel="fa2", gpu="l4", method="replay", **SMALL)
    assert iosim.explain(p).to_dict() == iosim.explain(kernel="fa2", gpu="l4", **SMALL).to_dict()
    with pytest.raises(iosim.InputError, match="heads contradicts a prediction"):
        iosim.explain(p, heads=4)


def test_one_claim_is_checked_at_a_time() -> None:
    for claims in ({}, {"hbm": "1GB", "l2": "2GB"}):
        with pytest.raises(iosim.InputError, match=f"takes one claim and has {len(claims)}"):
            iosim.check_claim(**claims)
    with pytest.raises(iosim.InputError, match="tolerance '3' is out of range"):
        iosim.check_claim(hbm="1GB", tolerance=3)


def test_tiles_are_picked_by_keywords() -> None:
    ranking = iosim.pick_tiles(gpu="l4", heads=2, seq_len=64, head_dim=64, library=False)
    problem = iosim.AttentionProblem(heads=2, seq_q=64, head_dim=64)
    assert ranking.best.tile == iosim.pick_tiles(problem, "l4", library=False).best.tile


def test_a_ranking_shows_its_first_tiles() -> None:
    ranking = iosim.pick_tiles(gpu="l4", heads=2, seq_len=64, head_dim=64, library=False)
    assert re.fullmatch(r"<TileRanking: l4, \d+ fit, \d+ do not; best \d+x\d+>", repr(ranking))
    page = ranking._repr_html_()
    assert page.count("<tr>") == 1 + min(10, len(ranking.candidates))
    assert str(ranking.best.tile) in page
    study = iosim.study_tile("64x64", gpu="l4", heads=2, seq_len=64, head_dim=64)
    assert repr(study) == f"<TileStudy: {study.answer}>"


# --- the namespace ----------------------------------------------------------------------------------------------------


def test_no_module_of_the_package_hides_a_function() -> None:
    taken = {p.stem if p.suffix == ".py" else p.name for p in (ROOT / "iosim").iterdir()}
    assert not taken & set(iosim.__all__)


def test_a_call_loads_neither_the_pages_nor_what_draws() -> None:
    code = (
        "import sys, iosim; repr(iosim.predict(gpu='l4', heads=1, seq_len=64)); "
        "print([m for m in ('torch', 'pandas', 'sympy', 'plotly', 'jinja2', 'argparse') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"


# --- how results show themselves --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_shows_itself_in_a_line_a_text_and_tables(
    name: str, results: dict[str, Shown]
) -> None:
    result = results[name]
    assert re.fullmatch(r"<\w+: [^\n]{10,150}>", repr(result)), repr(result)
    text, page = str(result), result._repr_html_()
    tables = [part for part in result._parts() if isinstance(part, Table)]
    assert tables
    for table in tables:
        assert all(cell.strip() in text for row in table.cells() for cell in row if cell != "-")
        for row in table.cells():
            cells = [
                unescape(c).replace("↔", "<->") for c in re.findall(r"<td[^>]*>(.*?)</td>", page)
            ]
            assert all(cell.strip() in cells for cell in row)
    assert page.count("<table>") == len(tables)
    assert "<script" not in page


@pytest.mark.parametrize("name", quick_every(COMMANDS, 3))
def test_a_results_text_is_what_its_command_prints(
    name: str, results: dict[str, Shown], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(COMMANDS[name].split()) == 0
    assert str(results[name]).strip() in capsys.readouterr().out


@pytest.mark.parametrize("name", NO_FIGURES)
def test_what_is_read_has_no_figure(name: str, results: dict[str, Shown]) -> None:
    assert results[name].figures == ()
    with pytest.raises(iosim.InputError, match="there is no figure of this result"):
        results[name].figure()


@pytest.mark.parametrize(
    "name", quick_every((name for name in RESULTS if name not in NO_FIGURES), 3)
)
def test_figures_are_those_of_the_pages(name: str, results: dict[str, Shown]) -> None:
    pytest.importorskip("plotly")
    result = results[name]
    panels = result._panels()
    assert result.figures == tuple(p.id for p in panels)
    assert result.figures
    for panel in panels:
        figure = result.figure(panel.id)
        assert len(figure.data) == len(panel.data)
        assert figure.layout.title.text == panel.title
    assert result.figure().layout.title.text == panels[0].title
    with pytest.raises(iosim.InputError, match="name 'nothing' is not known"):
        result.figure("nothing")


def test_text_of_users_stays_text_in_html() -> None:
    kernel = iosim.Kernel("<b>mine</b>", "flash", iosim.Tile(64, 32))
    assert "<b>" not in iosim.predict(iosim.AttentionProblem(seq_q=64), kernel, "l4")._repr_html_()


# --- what is said of what is returned ---------------------------------------------------------------------------------


def returned() -> list[type[Any]]:
    """The classes of the results and of what a reader of them meets first."""
    from iosim.evidence.claims import Check
    from iosim.readers.bounds import HbmBounds
    from iosim.readers.timing.chain_time import ChainTime, LaunchTime
    from iosim.studies.compare import Comparison
    from iosim.studies.compare.study import Baseline
    from iosim.studies.decode import Decoding
    from iosim.studies.distributed.ring import Ring
    from iosim.studies.explain import Explanation, Source
    from iosim.studies.formulas.study import FormulaStudy
    from iosim.studies.models.whole import WholeModels, WholeRun
    from iosim.studies.training import Frontier, TrainingPrediction

    exported = [
        exported_class
        for name in iosim.__all__
        if inspect.isclass(exported_class := getattr(iosim, name))
    ]
    traffic_class = type(iosim.predict(heads=1, seq_len=64).l2)
    results = [
        Check,
        Comparison,
        Decoding,
        Explanation,
        FormulaStudy,
        Frontier,
        Ring,
        TrainingPrediction,
        WholeModels,
        WholeRun,
    ]
    return [*exported, traffic_class, *results, Baseline, ChainTime, HbmBounds, LaunchTime, Source]


def test_every_public_attribute_is_documented_with_its_unit() -> None:
    unsaid = [
        line
        for exported_class in returned()
        if exported_class is not iosim.HardwareProfile
        for line in wanting(exported_class)
    ]
    assert unsaid == []


def test_every_quantity_of_a_profile_has_its_unit_in_its_name_and_its_meaning_in_the_docs() -> None:
    page = ROOT / "docs" / "profiles.md"
    if not page.is_file():
        pytest.skip("iosim runs from an install without its docs")
    text = page.read_text(encoding="utf-8")
    assert [name for name in QUANTITIES if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", [n for n in iosim.__all__ if n != "__version__"])
def test_every_public_method_is_documented(name: str) -> None:
    for method, value in inspect.getmembers(getattr(iosim, name), inspect.isfunction):
        assert method.startswith("_") or inspect.getdoc(value), method


def called(gpu: str, heads: int = 8, share: float = 0.5, mask: str | None = None) -> None:
    """Of keywords: `gpu` has a refusal of its own, where what it names is looked up."""


@pytest.mark.parametrize(
    ("values", "taken", "refused"),
    [
        ({"heads": 4, "share": 1, "mask": None}, ("heads", "share", "mask"), None),
        ({"heads": True}, ("heads",), "heads"),
        ({"heads": 4.0}, ("heads",), "heads"),
        ({"heads": 4, "share": "1"}, ("heads", "share"), "share"),
        ({"heads": None}, ("heads",), "heads"),
        ({"heads": None}, (), None),  # not asked for: the default
        ({"gpu": 3}, ("gpu",), None),
        ({"gpu": None}, ("gpu",), "gpu"),
        ({"unknown": 3}, ("unknown",), None),  # refused elsewhere, with a suggestion
    ],
)
def test_types_are_looked_at_keyword_by_keyword(
    values: dict[str, Any], taken: tuple[str, ...], refused: str | None
) -> None:
    signature = inspect.signature(called)
    if refused is None:
        keywords.check_types(values, signature, taken)
    else:
        with pytest.raises(InputError, match=f"^{refused} .* is no value; accepted: "):
            keywords.check_types(values, signature, taken)
