"""The commands: what each is called and says of itself, under the question that it answers, which function runs it and
which options it takes. Nothing that a command computes with is loaded here."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from iosim.base.fields import Kind
from iosim.base.records import dataclass, replace
from iosim.base.words import DEFAULT
from iosim.commands.options import (
    ALL_SIZES,
    COMMON,
    FORMATS,
    MODEL,
    USUAL_GPU,
    CommandParser,
    One,
    Run,
)
from iosim.problem.fields import BESIDES, FIELDS
from iosim.studies import requests
from iosim.studies.requests import (
    DECODE,
    EXPLORE,
    LATENCY,
    OF_MODEL,
    ORDERS,
    OVERRIDES,
    PINNED,
    RING,
    TILES,
    TRAIN,
    WHOLE,
)

AddOptions = Callable[[CommandParser], None]


@dataclass(frozen=True)
class Command:
    help: str
    run: Run | None
    add_options: AddOptions


COMMAND_GROUPS: dict[str, dict[str, Command]] = {}
"""Commands under the question that they answer, in the order of the help."""


def command(question: str, run: Run | None = None) -> Callable[[AddOptions], AddOptions]:
    """The function below adds the options of the command of its name, which its docstring says to users. `run` runs it;
    a command with actions has one for each of these. Both load what they need when they are called."""

    def put(add_options: AddOptions) -> AddOptions:
        name = add_options.__name__.replace("_", "-")
        # Help is in the order of this file: the decorator runs where a command is defined.
        COMMAND_GROUPS.setdefault(question, {})[name] = Command(
            str(add_options.__doc__), run, add_options
        )
        return add_options

    return put


WHAT_MOVES = "what moves, and why"
AXES = ("seq_q", "seq_k", "batch")
"""Fields whose options take lists in a comparison, the last two with --per."""
ONE_VALUE = (Kind.FLAG, Kind.PROBABILITY, Kind.LENGTHS, Kind.FILE)
SWEPT = tuple(
    n
    for n, f in {**FIELDS, **OVERRIDES, **BESIDES}.items()
    if f.kind not in ONE_VALUE and f.low >= 0
)
OF_CODE = ("code", "entry", "grid", "block", "arg", "shared_bytes")


def run_predict(args: argparse.Namespace) -> int:
    from iosim.commands.predict import predict

    return predict(args)


@command(WHAT_MOVES, run_predict)
def predict(parser: CommandParser) -> None:
    """bytes by level and tensor, bounds, time and memory of attention on a GPU"""
    parser.add_gpu(several=True)
    parser.add_kernel("naive,default", several=True, default="naive,default; with --model default")
    parser.add_model()
    parser.add_problem(several=ALL_SIZES)
    parser.add_settings()
    parser.add_conditions()
    parser.add_fields("against an earlier prediction", requests.AGAINST, ("against", "fail_above"))
    parser.add_fields("of a kernel known by its code", requests.CODE, OF_CODE)
    parser.add_output()


def run_compare(args: argparse.Namespace) -> int:
    from iosim.commands.compare import compare

    return compare(args)


@command(WHAT_MOVES, run_compare)
def compare(parser: CommandParser) -> None:
    """kernels and GPUs side by side: bytes by level and tensor, time, memory, ratios to a baseline"""
    parser.add_gpu(several=True)
    parser.add_kernel(
        None, several=True, default="naive,default; with --per default and the libraries'"
    )
    parser.add_fields("options", requests.COMPARE, ("baseline",))
    parser.add_fields("which GPU to take", requests.CHOICE, ("per", "price"))
    parser.add_model()
    parser.add_problem(several=AXES)
    parser.add_conditions("l2_start", "method")
    parser.add_fields("of a kernel known by its code", requests.CODE, OF_CODE)
    parser.add_output(page=True)
    parser.add_argument("--csv", metavar="FILE", help="also write the rows there, as CSV")
    parser.set_defaults(places=("out", "csv"))


def run_explain(args: argparse.Namespace) -> int:
    from iosim.commands.why import explain

    return explain(args)


@command(WHAT_MOVES, run_explain)
def explain(parser: CommandParser) -> None:
    """why a kernel's HBM bytes are what they are, and what would lower them"""
    parser.add_gpu(several=True)
    parser.add_kernel("default", several=True)
    parser.add_problem(several=ALL_SIZES)
    parser.add_settings()
    parser.add_conditions("l2_start", "clocks", "launched")
    parser.add_fields("options", requests.EXPLAIN, ("time", "terms"))
    parser.add_fields("of a kernel known by its code", requests.CODE, OF_CODE)
    parser.add_output(("table", "json", "md"))


def run_trace(args: argparse.Namespace) -> int:
    from iosim.commands.why import trace

    return trace(args)


@command(WHAT_MOVES, run_trace)
def trace(parser: CommandParser) -> None:
    """hits over time, reuse distances and CTAs of a replay, as table, figure or Chrome trace"""
    parser.add_gpu()
    parser.add_kernel("default", several=True)
    parser.add_problem(several=())
    parser.add_settings()
    parser.add_conditions("l2_start")
    parser.add_fields("options", requests.TRACE, ("launch", "bins"))
    parser.add_output(("table", "json", "csv", "html", "chrome"))


def run_explore(args: argparse.Namespace) -> int:
    from iosim.commands.explore import explore

    return explore(args)


@command(WHAT_MOVES, run_explore)
def explore(parser: CommandParser) -> None:
    """a page in the browser: what a model takes on GPUs side by side, and attention replayed inside the L2"""
    place = "where the page goes"
    parser.add_fields(COMMON, EXPLORE, but=("out", "runtime", "force", "port"))
    parser.add_fields(place, EXPLORE, ("port", "runtime", "force"))
    parser.group(place).add_argument("--out", "-o", metavar="DIR", help=EXPLORE["out"].help)


def run_formula(args: argparse.Namespace) -> int:
    from iosim.commands.why import formula

    return formula(args)


@command(WHAT_MOVES, run_formula)
def formula(parser: CommandParser) -> None:
    """SM<->L2 bytes in closed form: text, LaTeX, numbers put in, the limit against the papers"""
    from iosim.commands.asked import FORMULA_SHOWN

    help_text = "algorithm (flash, flash1, naive, ...) or kernel (fa2, cudnn, ...)"
    parser.add_argument("name", metavar="NAME", help=help_text)
    rest = f"and whose fast memory M the limit is put in numbers for (default: {USUAL_GPU}, with M a symbol)"
    parser.add_gpu(None, f"GPU for which a library kernel chooses, {rest}")
    sizes = (*requests.SIZES, "dtype", "splits", "tile")
    parser.add_fields("sizes; those not given stay symbols", requests.FORMULA, sizes)
    parser.add_fields("what is computed", requests.FORMULA, ("causal", "mask", *requests.CHOICES))
    parser.add_fields("output", FORMULA_SHOWN)
    parser.add_output(("table", "json", "csv", "md"))


def run_sweep(args: argparse.Namespace) -> int:
    from iosim.commands.sweep import sweep

    return sweep(args)


@command(WHAT_MOVES, run_sweep)
def sweep(parser: CommandParser) -> None:
    """predictions of a whole grid, or of the rows of a file, as CSV or Parquet"""
    from iosim.commands.asked import SWEEP_SHOWN

    parser.add_gpu(several=True)
    parser.add_kernel("naive,default", several=True)
    parser.add_model()
    parser.add_problem(several=SWEPT)
    parser.add_settings(several=SWEPT)
    parser.add_fields(MODEL, requests.SWEEP, ("l2_start", "method"))
    parser.add_fields(
        "rows and who works them out", requests.SWEEP, ("problems", "jobs", "dask", "fresh")
    )
    parser.add_output(("table", "csv", "json"), page=True)
    parser.add_fields("output", SWEEP_SHOWN)
    parser.group("output").description = (
        "--out FILE.csv or FILE.parquet appears with the last row; what is done stands in FILE.partial until then, and "
        "the same command goes on from there."
    )


WHAT_TO_CHOOSE = "what to choose"


def run_tiles(args: argparse.Namespace) -> int:
    from iosim.commands.choose import tiles

    return tiles(args)


@command(WHAT_TO_CHOOSE, run_tiles)
def tiles(parser: CommandParser) -> None:
    """tiles that fit a problem on a GPU, ranked by predicted time"""
    from iosim.commands.asked import TILES_SHOWN

    parser.add_gpu(several=True)
    parser.add_model()
    parser.add_problem()
    parser.add_fields("tiles", TILES_SHOWN)
    parser.add_fields("tiles", TILES, but=OF_MODEL, several=("tile",))
    parser.add_fields("of a kernel known by its code", requests.CODE, OF_CODE)
    parser.add_output(("table", "json", "csv", "md"), page=True)


def run_orders(args: argparse.Namespace) -> int:
    from iosim.commands.choose import orders

    return orders(args)


@command(WHAT_TO_CHOOSE, run_orders)
def orders(parser: CommandParser) -> None:
    """in which order tiles should start: orders ranked by time and HBM bytes, and their code"""
    from iosim.commands.asked import ORDERS_SHOWN

    parser.add_gpu(several=True)
    parser.add_kernel("default", "kernel whose orders are searched")
    parser.add_problem(several=ALL_SIZES)
    parser.add_model()
    parser.add_conditions("l2_start")
    parser.add_fields("orders", ORDERS, ("weights",))
    parser.add_fields("orders", ORDERS_SHOWN)
    parser.add_fields("orders", ORDERS, ("tile", *PINNED), several=("tile",))
    parser.add_output(("table", "json", "csv", "md"), page=True)


def run_report(args: argparse.Namespace) -> int:
    from iosim.commands.compare import report

    return report(args)


@command(WHAT_TO_CHOOSE, run_report)
def report(parser: CommandParser) -> None:
    """one HTML and one Markdown report over GPUs, kernels and sequence lengths"""
    parser.add_gpu(several=True)
    parser.add_kernel("naive,default", several=True)
    parser.add_model()
    parser.add_problem(lengths="1k:64k:x2")
    parser.add_conditions("l2_start", "method")
    g, formats = parser.group("output"), ("both", "html", "md")
    help_text = "both, html or md (default: both)"
    g.add_argument(
        "--format", choices=formats, default=formats[0], metavar="FORMAT", help=help_text
    )
    help_text = (
        "directory that exists, or name of the .html or .md file, beside which the other is written under the same "
        "name (default: report.html and report.md here)"
    )
    g.add_argument("--out", "-o", metavar="PLACE", help=help_text)
    parser.add_page("write the page alone, there")


SERVING = "in serving and training"
OF_STEP = ("batch", "context", "batch_contexts", "heads", "kv_heads", "head_dim", "dtype", "layers")
OF_TRAINED = ("seq_len", "batch", "layers", "width", "heads", "kv_heads", "causal")
OF_TRAINING = (
    "attention",
    "precision",
    "optimizer",
    "step",
    "recompute",
    "backend",
    "accumulate_gradients",
    "master_weights",
    "lora_rank",
    "lora_on",
    "data_parallel",
    "zero",
)


def run_decode(args: argparse.Namespace) -> int:
    from iosim.commands.serving import decode

    return decode(args)


@command(SERVING, run_decode)
def decode(parser: CommandParser) -> None:
    """attention per generated token: bytes, time, tokens per second over the context's length"""
    parser.add_gpu(several=True)
    parser.add_kernel(None, several=True, default="default")
    parser.add_model(layers=False)
    parser.add_fields(COMMON, DECODE, OF_STEP)
    more = "more of the model and the step (the defaults are those of Llama-3-8B)"
    parser.add_fields(more, DECODE, but=(*OF_STEP, *OF_MODEL))
    parser.add_output(("table", "json", "csv", "md", "html"))


def run_latency(args: argparse.Namespace) -> int:
    from iosim.commands.serving import latency

    return latency(args)


@command(SERVING, run_latency)
def latency(parser: CommandParser) -> None:
    """what an attention call takes in a serving stack: kernel, combine, cache write, gaps"""
    parser.add_fields(COMMON, LATENCY, ("stack",))
    parser.add_gpu(several=True)
    parser.add_problem(several=ALL_SIZES)
    parser.add_model()
    parser.add_fields("the call", LATENCY, ("batch_contexts", "cache_write", "calibration"))
    parser.add_conditions("method")
    parser.add_fields(MODEL, LATENCY, ("l2_start", "clocks", "launched", "ecc"))
    parser.add_output(page=True)


def run_ring(args: argparse.Namespace) -> int:
    from iosim.commands.serving import ring

    return ring(args)


@command(SERVING, run_ring)
def ring(parser: CommandParser) -> None:
    """attention over several GPUs: chunk schedules, idle time, link bytes, time and memory"""
    parser.add_gpu()
    parser.add_fields(COMMON, RING, ("num_gpus",))
    parser.add_kernel("default", "kernel of a pair of chunks")
    parser.add_model(layers=False)
    parser.add_problem(several=())
    parser.add_fields("GPUs, links and schedules", RING, but=("num_gpus", *OF_MODEL))
    parser.add_fields("GPUs, links and schedules", RING, ("layers",))
    parser.add_argument(
        "--steps", action="store_true", help="print the chunk schedules, step by step"
    )
    parser.add_output(page=True)


def run_model(args: argparse.Namespace) -> int:
    from iosim.commands.serving import model

    return model(args)


@command(SERVING, run_model)
def model(parser: CommandParser) -> None:
    """whole models by part: HBM bytes and time of prefill, decoding or training, attention's share"""
    help_text = "models side by side: names (iosim models list), Hugging Face config.jsons or their directories"
    parser.add_argument("models", metavar="NAME,...", nargs="?", help=help_text)
    parser.group(COMMON).add_argument(
        "--model", metavar="NAME,...", action=One, help="the same, as other commands take it"
    )
    parser.add_gpu(several=True)
    parser.add_kernel(DEFAULT, "kernel of the attention")
    parser.add_fields(
        COMMON,
        WHOLE,
        (
            "batch",
            "seq_len",
            "context",
            "training",
            "fused",
            "dtype",
            "weights",
            "cache_dtype",
            "price",
        ),
    )
    parser.add_fields("of a model", WHOLE, ("layers", "tensor_parallel"))
    parser.add_output(("table", "json", "csv", "md", "html"))


def run_train_memory(args: argparse.Namespace) -> int:
    from iosim.commands.serving import train_memory

    return train_memory(args)


@command(SERVING, run_train_memory)
def train_memory(parser: CommandParser) -> None:
    """memory over time, step time and what fits, of a transformer trained on one GPU"""
    parser.add_gpu()
    parser.add_model(layers=False, share=False)
    parser.add_fields(COMMON, TRAIN, OF_TRAINED)
    parser.add_kernel(
        None, "catalog kernel whose time stands for the attention (default: the attention's own)"
    )
    more = "more of the model (the defaults are those of GPT-2 small)"
    parser.add_fields(more, TRAIN, but=(*OF_TRAINED, *OF_TRAINING, "reserve"))
    parser.add_fields("training", TRAIN, OF_TRAINING)
    help_text = "map what fits over sequence lengths and width, batch or layers (default width), whose option then takes a list"
    parser.group("what is asked").add_argument(
        "--frontier", nargs="?", const="width", metavar="AXIS", help=help_text
    )
    parser.add_fields("what is asked", TRAIN, ("reserve",))
    parser.add_output(page=True)


TRUST = "how far to trust it"


def run_validate(args: argparse.Namespace) -> int:
    from iosim.commands.trust import validate

    return validate(args)


@command(TRUST, run_validate)
def validate(parser: CommandParser) -> None:
    """predictions beside recorded measurements, and gates on their errors"""
    from iosim.commands.asked import VALIDATE

    # Two options lead the group, the gate follows, then the rest.
    first = ("measurements", "ncu")
    parser.add_fields("options", VALIDATE, first)
    parser.add_gpu("h200", "GPU or profile file measured on")
    help_text = (
        "exit code 1 if kernels without spills err by more: hbm_read=5%% (the largest error), hbm_read:p95=5%%, "
        "l2_read:median=0.1%% (repeats); what it leaves out is said"
    )
    parser.add_argument(
        "--fail-above",
        action="append",
        default=[],
        metavar="QUANTITY[:STATISTIC]=LIMIT",
        help=help_text,
    )
    parser.add_fields("options", VALIDATE, but=first)
    parser.add_conditions("ecc")
    parser.add_output(("table", "json", "csv", "md", "html"))
    parser.add_calls("the calls in --ncu FILE, as far as kernel names and grids leave them open")


def run_reproduce(args: argparse.Namespace) -> int:
    from iosim.commands.trust import reproduce

    return reproduce(args)


@command(TRUST, run_reproduce)
def reproduce(parser: CommandParser) -> None:
    """published numbers computed again: claim, computed, ratio, arithmetic"""
    help_text = "sections, such as A,G (default: all; --list says what each is about)"
    parser.add_names("--section", default_name=None, several=True, metavar="LETTER", help=help_text)
    parser.group(COMMON).add_argument(
        "--list", action="store_true", help="the sections' letters and titles alone"
    )
    parser.add_output(("table", "json", "csv", "md"))


def run_check_claim(args: argparse.Namespace) -> int:
    from iosim.commands.trust import check_claim

    return check_claim(args)


@command(TRUST, run_check_claim)
def check_claim(parser: CommandParser) -> None:
    """what a number from elsewhere counts (LLM-Viewer, a paper, a profiler), and why it is off"""
    parser.add_fields("the number, as it was published", requests.CLAIM)
    parser.add_gpu()
    parser.add_kernel("default")
    parser.add_problem(several=())
    parser.add_settings()
    parser.add_output()


OWN_GPU = "on a GPU of your own"
MEASURED = ("batch", "heads", "kv_heads", "head_dim", "dtype")
KNOBS = (
    "tile",
    "warps",
    "stages",
    "order",
    "direction",
    "heavy_first",
    "section_heads",
    "scheduler",
    "splits",
)
KNOB_DEFAULTS = {
    "tile": "each head_dim's own",
    "order": "head where causal, else query",
    "direction": "ascending",
    "heavy_first": "where causal",
    "section_heads": "0",
    "scheduler": "static",
    "splits": "1",
}


def run_calibrate(args: argparse.Namespace) -> int:
    from iosim.commands.own_gpu import calibrate

    return calibrate(args)


@command(OWN_GPU, run_calibrate)
def calibrate(parser: CommandParser) -> None:
    """measure this machine's GPU and write its hardware profile"""
    from iosim.commands.asked import CALIBRATE

    parser.description = (
        "Runs microbenchmarks (L2 capacity, bandwidth and latency of L2 and memory, exponentials, matrix "
        "products, launches) and writes a hardware profile for --gpu, over the shipped one of the same GPU if there is "
        "one. Needs an NVIDIA GPU and nvcc; miss counters, which the L2's model is fitted to, need ncu as well."
    )
    parser.add_fields("options", CALIBRATE, but=("profiler",))
    parser.add_gpu(help_text="with --times: the GPU that it ran on")
    parser.add_fields("options", CALIBRATE, ("profiler",))
    parser.set_defaults(places=("out", "raw", "bundle"))


def run_measure(args: argparse.Namespace) -> int:
    from iosim.commands.own_gpu import measure

    return measure(args)


@command(OWN_GPU, run_measure)
def measure(parser: CommandParser) -> None:
    """run the project's kernels on this machine's GPU, check them, and count their bytes"""
    from iosim.commands.asked import MEASURE, OF_LIBRARY

    parser.description = (
        "Runs calls of the project's kernels, holds their outputs against float64, and counts their bytes "
        "under Nsight Compute, a row per launch (or times them, --time). A table that is there is added to, and "
        "calls that it holds are not run again. With --chain, a row is a whole call, all its launches through one L2. "
        "Needs an NVIDIA GPU, nvcc, PyTorch with CUDA, and ncu unless --time."
    )
    parser.add_fields(COMMON, MEASURE, ("kernel", "seq_q"))
    dtype = replace(
        FIELDS["dtype"], usual=None, default=None, default_text="fp16; fp32 for minimal"
    )
    problem = {**FIELDS, "dtype": dtype, "causal": BESIDES["causal"]}
    parser.add_fields(
        COMMON, problem, (*MEASURED, "causal", "passes"), several=("heads", "head_dim")
    )
    parser.add_fields("more of the problem", FIELDS, ("seq_k", "window"))
    parser.add_fields(
        "what is measured", MEASURE, ("plan", *OF_LIBRARY, "time", "l2", "dry_run", "cc", "out")
    )
    own_settings = "kernel settings of flash_fwd and flash_bwd, and of naive"
    knobs = {
        n: replace(OVERRIDES[n], default_text=KNOB_DEFAULTS.get(n, OVERRIDES[n].default_text))
        for n in KNOBS
    }
    parser.add_fields(own_settings, knobs, several=("tile", "order", "direction"))
    parser.group(own_settings).add_argument(
        "--persistent", action="store_true", help=argparse.SUPPRESS
    )
    parser.add_fields(own_settings, MEASURE, ("deterministic", "bypass_l1"))
    chains = "whole chains, with batch, heads, seq-len, head-dim, dtype and pass fwd or fwd+bwd"
    parser.add_fields(chains, MEASURE, ("chain", "launches"))
    parser.set_defaults(default_of=parser.get_default, places=("out", "launches"))


def run_ncu_rule(args: argparse.Namespace) -> int:
    from iosim.commands.trust import ncu_rule

    return ncu_rule(args)


@command(OWN_GPU, run_ncu_rule)
def ncu_rule(parser: CommandParser) -> None:
    """a rule that shows predicted beside counted bytes on Nsight Compute's page"""
    parser.description = (
        "Writes a section and a rule for Nsight Compute (ncu --section-folder DIR). The rule asks this "
        "iosim what an attention launch should move and prints it on the profiler's page, beside what was counted. "
        "What names and grids of kernels leave open is said by options here, or by an NVTX range around the call "
        "whose text is 'iosim' and the same options."
    )
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--install",
        metavar="DIR",
        help="write iosim_attention.section and iosim_attention.py there",
    )
    help_text = "answer for one launch, as the rule describes it in JSON (-: standard input)"
    how.add_argument("--launch", metavar="FILE", help=help_text)
    parser.add_gpu(None, "GPU or profile file (default: the one that the profiler names)")
    parser.add_conditions("ecc")
    parser.add_calls("the calls, as far as kernel names, grids and NVTX ranges leave them open")
    parser.add_output(("table", "json"))


KNOWN = "what iosim knows"


def run_profiles(args: argparse.Namespace) -> int:
    from iosim.commands.known import profiles

    return profiles(args)


def run_profile(args: argparse.Namespace) -> int:
    from iosim.commands.known import profile

    return profile(args)


def run_check_profile(args: argparse.Namespace) -> int:
    from iosim.commands.known import check_profile

    return check_profile(args)


def run_add_profile(args: argparse.Namespace) -> int:
    from iosim.commands.known import add_profile

    return add_profile(args)


@command(KNOWN)
def profiles(parser: CommandParser) -> None:
    """list, show and check hardware profiles"""
    bundle = "of iosim calibrate --bundle, or a profile that ends in .toml"
    adds = "take a calibration's bundle, or a profile file, among your own profiles"
    checked = "what is wrong with a profile file of your own"
    *_, put = parser.add_actions(
        ("list", run_profiles, "all profiles: those shipped, and your own", "", "", FORMATS),
        (
            "show",
            run_profile,
            "every number of a profile, with its source",
            "name",
            "GPU or profile file",
            FORMATS,
        ),
        ("check", run_check_profile, checked, "file", "", ("table", "json")),
        ("add", run_add_profile, adds, "file", bundle, ()),
    )
    put.add_argument("--name", help="name of the profile (default: that in the file)")
    put.add_argument(
        "--replace",
        action="store_true",
        help="put it in the place of your own profile of that name",
    )


def run_kernels(args: argparse.Namespace) -> int:
    from iosim.commands.known import kernels

    return kernels(args)


def run_kernel(args: argparse.Namespace) -> int:
    from iosim.commands.known import kernel

    return kernel(args)


def run_check_kernel(args: argparse.Namespace) -> int:
    from iosim.commands.known import check_kernel

    return check_kernel(args)


def run_new_kernel(args: argparse.Namespace) -> int:
    from iosim.commands.known import new_kernel

    return new_kernel(args)


@command(KNOWN)
def kernels(parser: CommandParser) -> None:
    """list, show, check and write kernels"""
    show_help, kernel = (
        "a kernel's tiles, order, and where they come from",
        "kernel, or a kernel file",
    )
    checked = "what is wrong with a kernel file of your own"
    *_, new = parser.add_actions(
        ("list", run_kernels, "all kernels", "", "", FORMATS),
        ("show", run_kernel, show_help, "name", kernel, ("table", "json")),
        ("check", run_check_kernel, checked, "file", "", ("table", "json")),
        (
            "new",
            run_new_kernel,
            "write a kernel file of your own, from a kernel that is like it",
            "",
            "",
            (),
        ),
    )
    new.add_argument("--from", dest="base", metavar="NAME", help=kernel)
    code = {**requests.CODE, "code": replace(requests.CODE["code"], option="--from-code")}
    new.add_fields("of an attention kernel's code, in place of another kernel", code, OF_CODE)
    new.add_gpu(USUAL_GPU)
    named = "name of the new kernel (default: my-, and the other's)"
    new.add_argument("--name", dest="named", metavar="NAME", help=named)
    new.add_argument("--out", "-o", metavar="FILE", help="write there instead of standard output")


def run_models(args: argparse.Namespace) -> int:
    from iosim.commands.known import models

    return models(args)


def run_known_model(args: argparse.Namespace) -> int:
    from iosim.commands.known import model

    return model(args)


@command(KNOWN)
def models(parser: CommandParser) -> None:
    """list and show models, and what a config.json says of attention"""
    show_help, place = (
        "a model's layers by kind, and where its numbers stand",
        "model, config.json, or its directory",
    )
    parser.add_actions(
        ("list", run_models, "all models that --model knows by name", "", "", FORMATS),
        ("show", run_known_model, show_help, "name", place, FORMATS),
    )


def run_show_schema(args: argparse.Namespace) -> int:
    from iosim.commands.known import show_schema

    return show_schema(args)


@command(KNOWN, run_show_schema)
def schema(parser: CommandParser) -> None:
    """what a command's JSON holds: every key with its type and meaning, as a JSON schema"""
    help_text = "a command, such as predict or profiles show; none lists those that print JSON"
    parser.add_argument("name", metavar="COMMAND", nargs="*", help=help_text)
    parser.add_argument(
        "--out", "-o", metavar="FILE", help="write there instead of standard output"
    )


def run_clear_cache(args: argparse.Namespace) -> int:
    from iosim.commands.known import clear_cache

    return clear_cache(args)


def run_show_cache(args: argparse.Namespace) -> int:
    from iosim.commands.known import show_cache

    return show_cache(args)


@command(KNOWN)
def cache(parser: CommandParser) -> None:
    """show or clear the results of replays that are kept between runs"""
    show_help = "where they are kept, how many there are and how many bytes they take"
    clear = ("clear", run_clear_cache, "drop all of them", "", "", ())
    parser.add_actions(("show", run_show_cache, show_help, "", "", FORMATS), clear)


def run_completion(args: argparse.Namespace) -> int:
    from iosim.commands.completion import completion

    return completion(args)


@command(KNOWN, run_completion)
def completion(parser: CommandParser) -> None:
    """completion of commands, options and names by the Tab key, for bash, zsh and fish"""
    shells = ("bash", "zsh", "fish")
    parser.add_argument("shell", metavar="SHELL", choices=shells, help=", ".join(shells))
    help_text = "write the script where the shell looks for it, instead of printing it: it works in shells started from then on"
    parser.add_argument("--install", action="store_true", help=help_text)


COMMANDS = {name: entry for commands in COMMAND_GROUPS.values() for name, entry in commands.items()}
