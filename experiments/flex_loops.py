"""What Inductor compiles FlexAttention to, and how long that takes, on a GPU with PyTorch, Triton and `cuobjdump`:
`python experiments/flex_loops.py --out FILE.csv`. `--write` makes the catalog's table of the recorded file, without a
GPU: what a loop takes on each score beside the plain one of its head dimension, and its spilled registers.

A row is a loop with matrix products of a forward's kernel: the instructions of a warp in a turn, by kind, registers,
bytes of stack. `seconds` is the median of a call behind itself, as PyTorch's profiler has its longest kernel. Lengths
are whole blocks, a multiple of eight, odd, or under 128 queries, which have a kernel of their own.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pandas as pd
from experiment import record, run_script
from series import FLEX, Call, flex

from iosim.base.files import write_whole

HEADS, REPEATS, AT_ONCE = 264, 7, 12
HEAD_DIMS = (16, 32, 64, 128, 256)
MASKS = ("none", "causal", "window")
KINDS = (
    "HGMMA",
    "HMMA",
    "MUFU",
    "FFMA",
    "FMUL",
    "FADD",
    "FMNMX",
    "FSEL",
    "ISETP",
    "F2FP",
    "IMAD",
    "LDG",
    "LDGSTS",
    "LDSM",
    "LDS",
    "STS",
    "LDL",
    "STL",
    "BAR",
    "SHFL",
    "WARPGROUP",
)
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/ +([^;]*);")
PRODUCTS = ("HGMMA", "HMMA")


class Build(NamedTuple):
    head_dim: int
    mask: str
    heads: int
    seq_q: int
    seq_k: int
    dtype: str = "bfloat16"


def builds() -> Iterator[Build]:
    """The calls, each of a build of its own."""
    for d, mask, tokens in itertools.product(HEAD_DIMS, MASKS, (2048, 2040, 2039, 28, 60, 124)):
        yield Build(d, mask, HEADS, tokens, tokens)
    for d, queries, keys in itertools.product(HEAD_DIMS, (16, 60, 124), (2040, 8192)):
        yield Build(d, "none", HEADS, queries, keys)


def call(build: Build) -> Any:
    import torch

    like = {"device": "cuda", "dtype": getattr(torch, build.dtype)}
    q, k, v = (
        torch.randn(1, build.heads, n, build.head_dim, **like)
        for n in (build.seq_q, build.seq_k, build.seq_k)
    )
    return flex(
        Call("builds", FLEX, 1, build.heads, build.seq_q, build.seq_k, build.head_dim, build.mask),
        q,
        k,
        v,
    )


def timed(run: Any, place: Path) -> tuple[float, str]:
    """Seconds of a call's longest kernel, and its name; one process at a time."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        run()
    torch.cuda.synchronize()
    longest = []
    with open(place / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for _ in range(REPEATS):
            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                run()
                torch.cuda.synchronize()
            longest.append(max((e.device_time_total * 1e-6, e.name) for e in seen.events()))
    return statistics.median(seconds for seconds, _ in longest), longest[0][1]


def work(part: int, place: Path) -> None:
    """Compiles and times every AT_ONCE-th build, each in a cache of its own."""
    for n, build in itertools.islice(enumerate(builds()), part, None, AT_ONCE):
        home = place / str(n)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(home)
        os.environ["TRITON_CACHE_DIR"] = str(home / "triton")
        try:
            seconds, name = timed(call(build), place)
        except Exception as error:  # a compiler's: the build has no row
            print(f"{build}: {str(error).splitlines()[0][:100]}", file=sys.stderr)
            continue
        (place / f"{n}.json").write_text(json.dumps([seconds, name]), encoding="utf-8")


def cuobjdump(option: str, cubin: Path) -> str:
    return subprocess.run(
        ["cuobjdump", option, cubin], capture_output=True, text=True, check=True
    ).stdout


def loops(cubin: Path) -> Iterator[dict[str, Any]]:
    """A row of counts for each innermost loop with products; of a kernel without any, for all of it."""
    code = [(int(at, 16), text) for at, text in INSTRUCTION.findall(cuobjdump("-sass", cubin))]
    places = {at: n for n, (at, _) in enumerate(code)}
    names = [re.sub(r"^@!?U?P\w+ +", "", text).split()[0].partition(".")[0] for _, text in code]
    spans = []
    for n, (at, text) in enumerate(code):
        to = re.search(r"\bBRA\b.* 0x([0-9a-f]+)", text)
        if (
            to
            and int(to[1], 16) < at
            and any(name in PRODUCTS for name in names[places[int(to[1], 16)] : n])
        ):
            spans.append((places[int(to[1], 16)], n + 1))
    (registers, stack), *_ = re.findall(
        r"REG:(\d+) STACK:(\d+)", cuobjdump("--dump-resource-usage", cubin)
    )
    for n, (first, end) in enumerate(spans or [(0, len(code))]):
        counts = Counter(names[first:end])
        beside = {
            "registers": registers,
            "stack": stack,
            "loop": n if spans else -1,
            "instructions": end - first,
        }
        yield {**beside, **{kind: counts[kind] for kind in KINDS}}


def measure(folder: Path) -> pd.DataFrame:
    def start(part: int) -> None:
        command = [sys.executable, __file__, "--part", str(part), "--out", str(folder)]
        subprocess.run(
            command, check=True, env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(start, range(AT_ONCE)))
    rows = []
    for n, build in enumerate(builds()):
        path = folder / f"{n}.json"
        if not path.is_file():
            continue
        seconds, name = json.loads(path.read_text(encoding="utf-8"))
        for cubin in sorted((folder / str(n)).glob(f"triton/*/{name}.cubin")):
            rows += [
                {**build._asdict(), "kernel": name, "seconds": f"{seconds:.9f}", **row}
                for row in loops(cubin)
            ]
    return pd.DataFrame(rows)


RECORDED = Path(__file__).with_name("measurements") / "h200_flex_loops.csv"
BUILDS = RECORDED.with_name("flex_builds.csv")
SHORT_BUILDS = RECORDED.with_name("flex_short_builds.csv")
CATALOG = Path(__file__).resolve().parents[1] / "iosim/catalog/libraries/flex-loops.csv"
ENDS = {2048: "whole", 2040: "eighths", 2039: "odd"}
"""Recorded lengths: of whole blocks, of multiples of eight, of any other length."""
SCORES = {16: 32, 32: 32, 64: 128, 128: 32, 256: 16}
"""Scores of a thread in a step: those of the tile over its threads."""


PARTS = ["begin", "first", "between", "second", "behind"]
SPREAD = 64
"""head_dim at which odd lengths without a mask have builds that differ by the strides of their heads."""
FAR_STRIDE = 1 << 21
"""Elements between two sequences from which the compiler holds their number otherwise (flex_builds.csv)."""


def code(build: pd.Series) -> str:
    """Instructions before each loop's first step, before what follows the loops, and in all."""
    ends = build[PARTS].cumsum()
    masked = [] if build["mask"] == "none" else [ends["between"]]
    return " ".join(str(int(n)) for n in (ends["begin"], *masked, ends["second"], ends["behind"]))


def ends_of(build: pd.Series) -> str:
    """Whole, eighths or odd; of odd lengths with builds of their own, which."""
    ends = {0: "whole", 120: "eighths"}.get(build.tokens % 128, "odd")
    if ends != "odd" or build.head_dim != SPREAD or build["mask"] != "none":
        return ends
    if build.heads == 1:
        return "odd, one head"
    far = build.tokens * build.heads * build.head_dim >= FAR_STRIDE
    return "odd, far" if far else ends


def catalog(recorded: pd.DataFrame, builds: pd.DataFrame) -> pd.DataFrame:
    """The catalog's rows. A build under a mask has two loops: first that of the blocks at an end, then the others'. Loops
    are those that a GPU ran, where it ran them; the code around them is of the same compiler without a GPU."""
    of_lengths = recorded[recorded.seq_q.isin(list(ENDS))].assign(tokens=recorded.seq_q)
    ran = {
        (int(loops.head_dim.iloc[0]), loops["mask"].iloc[0], ends_of(loops.iloc[0])): [
            (loop.instructions, loop.LDL + loop.STL) for loop in loops.itertuples()
        ]
        for _, loops in of_lengths.sort_values("loop").groupby(["head_dim", "mask", "seq_q"])
    }
    rows = []
    for _, build in builds.iterrows():
        width, mask, ends = key = int(build.head_dim), build["mask"], ends_of(build)
        names = ("first",) if mask == "none" else ("first", "second")
        counts = [(build[name], build[f"{name}_spills"]) for name in names]
        at_ends, others = (ran.get(key, counts)[n] for n in (0, -1))
        plain = ran[width, "none", "whole"][0]
        rows.append(
            {
                "head_dim": width,
                "mask": mask,
                "ends": ends,
                "step_operations": round((others[0] - plain[0]) / SCORES[width], 3),
                "end_operations": round((at_ends[0] - others[0]) / SCORES[width], 3),
                "step_spills": int(others[1]),
                "end_spills": int(at_ends[1] - others[1]),
                "code": code(build),
            }
        )
    return pd.DataFrame(rows).sort_values(["head_dim", "mask", "ends"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--write", action="store_true", help=f"write {CATALOG.name}")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        tables = (pd.read_csv(file, comment="#") for file in (RECORDED, BUILDS))
        write_whole(CATALOG, catalog(*tables).to_csv(index=False))
        return
    if options.out is None:
        parser.error("--out or --write is needed")
    if options.part is not None:
        work(options.part, options.out)
        return
    record(options.out, measure, f"python experiments/flex_loops.py --out {options.out.name}", ())


if __name__ == "__main__":
    run_script(main)
