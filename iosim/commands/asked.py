"""What commands are asked for beside the requests of studies: options of what they print, and of the commands that run
on a GPU or read what ran there."""

from __future__ import annotations

from iosim.base import fields as ask
from iosim.base.fields import Kind, like, table_of
from iosim.problem.fields import FIELDS
from iosim.studies.requests import CONDITIONS

SHOWN_TILES, SHOWN_ORDERS = 10, 12
"""Tiles and orders that a table has where no number is asked for."""
TIMES = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim")
"""Columns of a file of times, those of `iosim.studies.latency.fit`, which takes longer to load than a parser may."""
DRY_RUN_CC = "9.0"
CALLS = 300
"""That `measure --plan random` draws."""
OF_LIBRARY = ("seed", "calls", "only", "minutes")
TILES_SHOWN = table_of(
    top=ask.count(
        f"tiles of the ranking to list (default {SHOWN_TILES} in tables, all in json and csv)"
    ),
    rejected=ask.flag("say why the other tiles are rejected, by reason"),
    triton=ask.name(
        "print Python: a triton.Config list, best first, out of all configurations or of the tutorial's",
        metavar="all|tutorial",
        bare="all",
    ),
)
ORDERS_SHOWN = table_of(
    top=ask.count(f"orders to list (default {SHOWN_ORDERS} in tables, all in json and csv)"),
    code=ask.word(
        "print the best order as code: triton, cuda or formula",
        ("triton", "cuda", "formula"),
        metavar="LANGUAGE",
    ),
    check_constant=ask.name(
        "where sections of a constant size, such as section=50MiB, are right",
        metavar="section=SIZE",
    ),
)
SWEEP_SHOWN = table_of(
    plot=ask.names(
        "columns along the axes of the figure of --html: seq_q,time_s",
        metavar="X,Y",
        default_text="time_s, or bytes, against the first size that varies",
    ),
)
FORMULA_SHOWN = table_of(
    bound=ask.flag(
        "instead: bytes at both levels of the GPU beside the papers' bounds, and why M = the L2 changes them"
    ),
    latex=ask.flag("formulas as LaTeX, not as text"),
)
VALIDATE = table_of(
    measurements=ask.file(
        "CSV, a row per launch or per chain",
        default_text="the shipped ones: library kernels and chains of an H200, random calls of an H100",
    ),
    ncu=ask.file(
        "instead: a profile of your own, .ncu-rep or a CSV that ncu wrote (--csv, with or without --page raw)"
    ),
    with_spills=ask.flag("--fail-above counts kernels with spills, too"),
    across=ask.flag("compare measurements of one GPU with predictions for another"),
    times=ask.flag(
        "instead: every recorded and published time, by group, with targets; --fail-above then takes "
        "GROUP[:STATISTIC]=LIMIT (mean, median, p90, max; all: every group)"
    ),
    every=ask.count("with --times: every N-th row of each table", default_text="1"),
    published=ask.flag(
        "instead: tables that others published, by GPU; with --measurements FILE one of them, as its author wrote it"
    ),
    split=ask.flag("odd-numbered and even-numbered calls apart, too"),
    report=ask.name(
        "write validation.html and validation.md there: errors by level and regime, and the reason of every miss",
        metavar="DIR",
    ),
)
CALIBRATE = table_of(
    out=ask.file("profile to write", default_text="standard output", spellings=("-o",)),
    name=ask.name("name inside the profile", default_text="the file's, else my-gpu"),
    raw=ask.file("also keep the raw numbers, as JSON"),
    bundle=ask.file("also write one small file to send: raw numbers and profile"),
    given=ask.file("take raw numbers from there; needs no GPU", option="--from"),
    times=ask.file(
        f"fit a serving stack's constants to a CSV of your own times ({', '.join(TIMES)}; causal, dtype; and "
        "seconds, ms or us); needs no GPU"
    ),
    stack=ask.name("with --times: the stack that was timed", default_text="vllm"),
    profiler=ask.flag("ncu, and so without the L2's constants", True, option="--no-profiler"),
)
MEASURE = table_of(
    kernel=ask.names(
        "flash_fwd, flash_bwd, naive, minimal", ("flash_fwd",), default_text="flash_fwd"
    ),
    seq_q=like(
        FIELDS["seq_q"],
        kind=Kind.SIZES,
        help="query tokens: 4096, 512,4096 or 1k:64k:x2",
        default_text="4096",
        metavar="N,...",
    ),
    plan=ask.names(
        "instead of a problem: quick, full, its parts lengths, shapes, decode, orders, others, tiles, backward, cliff; "
        "chains, one of --chain; of PyTorch's kernels random, drawn calls, or builds, every build at two sizes"
    ),
    seed=ask.count("of --plan random: the draw", metavar="S", default_text="0", low=0),
    calls=ask.count("of --plan random: how many", default_text=str(CALLS)),
    only=ask.name("of PyTorch's kernels: count those whose names match", metavar="REGEX"),
    minutes=ask.number(
        "of PyTorch's kernels: start no call later than this; the same command goes on where it stopped",
        metavar="M",
    ),
    time=ask.flag("median of device events instead of counters"),
    l2=like(
        CONDITIONS["l2_start"],
        "cold",
        help="the L2 at each start: cold (flushed) or warm, as the same launch left it",
        option="",
    ),
    dry_run=ask.flag("list the calls and stop; needs no GPU"),
    cc=ask.name(
        "with --dry-run: compute capability",
        metavar="X.Y",
        default_text=f"the GPU's, else {DRY_RUN_CC}",
    ),
    out=ask.file("CSV to write or to add to; provenance.toml goes beside it", spellings=("-o",)),
    deterministic=ask.flag("flash_bwd without atomics"),
    bypass_l1=ask.flag("naive with loads that skip L1"),
    chain=ask.names(
        "naive, math, flash or cudnn of PyTorch, or iosim_naive, the three launches of --kernel naive"
    ),
    launches=ask.file(
        "a second CSV, a row for each launch of the chains by itself: its kernel, grid, block, registers and bytes"
    ),
)
