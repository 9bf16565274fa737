"""Records predictions.csv: what `iosim predict` answers for several hundred calls, so that a change which should move
no prediction can prove it.

    python tests/golden/make_predictions.py                       writes predictions.csv beside this script
    python tests/golden/make_predictions.py --compare             prints each row that differs from the recorded one
    python tests/golden/make_predictions.py --compare --summary   a page: rows moved by quantity, kernel and GPU
    python tests/golden/make_predictions.py --summary --base REV  that page between two recordings, REV's and today's

`--only TEXT` takes the calls that contain TEXT ("--only 'kernel fa2 '"). The summary is the body of a commit that moves
predictions.

The calls are drawn once, from a fixed seed, out of every kernel, GPU, pass and mask; those that iosim refuses are left
out of the recording. Bytes are compared exactly, times to 1e-9 of their size.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent))

from moved import Change, changes, summary

from iosim.commands.cli import main as iosim_main

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).resolve().with_name("predictions.csv")
SEED = 20
CALLS = 900
HOPPER = ("h100-sxm", "h100-pcie", "h200-sxm")
HOPPER_ONLY = ("cudnn", "fa3", "fa3-fp8", "fa3-fp8-transposed", "flashmla")
LATENT = ("flashmla", "mla")
GPUS = (
    "t4",
    "l4",
    "a10",
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "a100-pcie-80gb",
    "h100-sxm",
    "h100-pcie",
    "h200-sxm",
    "b200",
    "l40s",
    "rtx-3090",
    "rtx-4090",
    "v100-sxm2",
)
KERNELS = (
    "cudnn",
    "cutlass",
    "eager",
    "fa1",
    "fa2",
    "fa3",
    "fa3-fp8",
    "fa3-fp8-transposed",
    "flash",
    "flash1",
    "flashmla",
    "flex",
    "math",
    "minimal",
    "mla",
    "naive",
    "sdpa",
    "triton",
    "triton-streaming",
    "uniform",
    "uniform-naive",
)
EXACT = (
    "hbm_read",
    "hbm_write",
    "l2_read",
    "l2_write",
    "compulsory_read",
    "compulsory_write",
    "no_l2_read",
    "no_l2_write",
    "flops",
    "workspace_bytes",
    "peak_bytes",
    "traffic",
)
TIMES = ("time_s", "specification_time_s")
FIELDS = ("call", *EXACT, *TIMES)

BY_HAND = (
    "--gpu h200 --kernel fa2 --heads 8 --seq-len 8k --causal --dtype bf16",
    "--gpu h200 --kernel cudnn --heads 8 --seq-len 8k --causal --dtype bf16",
    "--gpu h200 --kernel cutlass --heads 8 --seq-len 8k --causal --dtype bf16",
    "--gpu h200 --kernel fa3 --heads 16 --kv-heads 4 --seq-len 4k --causal --dtype bf16",
    "--gpu a100 --kernel fa2 --heads 32 --seq-len 1 --seq-len-k 8k --kv-heads 8",
    "--gpu a100 --kernel fa2 --heads 32 --seq-len 1 --seq-len-k 8k --kv-heads 8 --page-size 256",
    "--gpu a100 --kernel fa2 --heads 32 --seq-len 1 --seq-len-k 2k --append-kv",
    "--gpu h100 --kernel flashmla --latent-kv --head-dim 576 --head-dim-v 512 --heads 128 --seq-len 1 --seq-len-k 8k "
    "--page-size 64",
    "--gpu h100 --kernel mla --latent-kv --head-dim 576 --head-dim-v 512 --heads 16 --seq-len 1 --seq-len-k 4k",
    "--gpu h100 --kernel flex --mask window+global --window 512 --global-tokens 128 --mask-block 128 --seq-len 4k",
    "--gpu h100 --kernel flex --mask butterfly --mask-block 128 --seq-len 4k --heads 4",
    "--gpu a100 --kernel flash --mask strided --mask-stride 4 --mask-block 64 --seq-len 2k --heads 4",
    "--gpu a100 --kernel fa2 --seq-lens 512,1024,77 --causal --heads 8",
    "--gpu a100 --kernel fa2 --seq-lens 512,100,77 --seq-lens-k 1024,100,512 --heads 8",
    "--gpu a100 --kernel cutlass --bias full --bias-shared batch --batch 2 --heads 8 --seq-len 1k",
    "--gpu a100 --kernel cutlass --bias full --bias-grad --heads 8 --seq-len 1k --pass bwd",
    "--gpu a100 --kernel cutlass --causal --mask-storage additive --heads 8 --seq-len 1k",
    "--gpu a100 --kernel flash --bias alibi --causal --heads 8 --seq-len 2k --pass fwd+bwd",
    "--gpu a100 --kernel naive --key-padding --causal --mask-storage bool --heads 4 --seq-len 1k --dropout 0.1",
    "--gpu t4 --kernel sdpa --heads 8 --seq-len 2k",
    "--gpu l4 --kernel uniform --heads 8 --seq-len 1k --head-dim 32 --head-dim-v 64",
    "--gpu h200 --kernel fa2 --heads 8 --seq-len 2k --l2 warm",
    "--gpu h200 --kernel naive --heads 8 --seq-len 1k --l2 warm",
    "--gpu h200 --kernel fa2 --heads 8 --seq-len 32k --causal --method capacity",
    "--gpu h200 --kernel fa2 --heads 8 --seq-len 32k --causal --method sampled",
    "--gpu h200 --kernel cudnn --heads 8 --seq-len 256k --causal",
    "--gpu a100 --kernel flash --tile 128x32 --warps 4 --order head --heavy-first --direction alternating --causal "
    "--seq-len 4k --heads 8",
    "--gpu a100 --kernel flash --tile 64x64 --scheduler persistent --section-heads 2 --causal --seq-len 4k --heads 8",
    "--gpu a100 --kernel flash --tile 64x64 --scheduler dynamic --direction descending --seq-len 4k --heads 8",
    "--gpu a100 --kernel flash --splits 4 --seq-len 128 --seq-len-k 8k --heads 2",
    "--gpu h100 --kernel fa3 --seq-len 1 --seq-len-k 8k --heads 32 --kv-heads 4 --pack-group --splits 8",
)


def random_call(draw: random.Random) -> str:
    """One call's options, of a size that takes a fraction of a second."""
    kernel = draw.choice(KERNELS)
    heads = draw.choice((1, 2, 4, 6, 8, 16))
    tokens = draw.choice((1, 17, 64, 100, 128, 256, 384, 500, 512, 777, 1000, 1024, 1536, 2048))
    if kernel == "minimal":
        tokens = max(32, tokens // 32 * 32)
    gpu = draw.choice(HOPPER if kernel in HOPPER_ONLY else GPUS)
    if kernel in LATENT:
        return latent_call(draw, gpu, kernel)
    words = ["--gpu", gpu, "--kernel", kernel, "--heads", str(heads), "--seq-len", str(tokens)]
    words += ["--batch", str(draw.choice((1, 1, 1, 2, 3)))]
    if draw.random() < 0.3:
        words += [
            "--kv-heads",
            str(draw.choice([n for n in range(1, heads + 1) if heads % n == 0])),
        ]
    if draw.random() < 0.25:
        words += ["--seq-len-k", str(draw.choice((33, 64, 512, 1024, 2048, 3000)))]
    words += ["--head-dim", str(draw.choice((32, 64, 64, 96, 128, 128, 192, 256)))]
    dtypes = {"minimal": ("fp32",), "fa3-fp8": ("fp8",), "fa3-fp8-transposed": ("fp8",)}
    words += ["--dtype", draw.choice(dtypes.get(kernel, ("fp16", "fp16", "bf16", "fp32", "fp8")))]
    mask = draw.choice(("none", "none", "causal", "causal", "window", "offset"))
    if mask == "causal":
        words += ["--causal"]
    elif mask == "window":
        words += ["--window", str(draw.choice((0, 63, 256, 1000)))]
    elif mask == "offset":
        words += ["--causal", "--offset", str(draw.choice((0, 5, 128)))]
    words += ["--pass", draw.choice(("fwd", "fwd", "bwd", "fwd+bwd"))]
    if draw.random() < 0.1:
        words += ["--dropout", "0.1"]
    if draw.random() < 0.2:
        words += ["--layout", "bshd"]
    if draw.random() < 0.1:
        words += ["--l2", "warm"]
    return " ".join(words)


def latent_call(draw: random.Random, gpu: str, kernel: str) -> str:
    """One call of a decode over a latent cache."""
    words = [
        "--gpu",
        gpu,
        "--kernel",
        kernel,
        "--latent-kv",
        "--head-dim",
        "576",
        "--head-dim-v",
        "512",
    ]
    words += ["--heads", str(draw.choice((16, 64, 128))), "--batch", str(draw.choice((1, 2, 8)))]
    words += [
        "--seq-len",
        str(draw.choice((1, 2))),
        "--seq-len-k",
        str(draw.choice((100, 1024, 4000))),
    ]
    if kernel == "flashmla" or draw.random() < 0.5:
        words += ["--page-size", "64"]
    return " ".join([*words, "--dtype", draw.choice(("fp16", "bf16"))])


def calls() -> list[str]:
    """The calls, in a fixed order."""
    draw = random.Random(SEED)
    return [*BY_HAND, *(random_call(draw) for _ in range(CALLS))]


def answer(call: str) -> dict[str, Any] | None:
    """One row of the recording; None where iosim refuses the call."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            status = iosim_main(["predict", *call.split(), "--format", "json"])
        except SystemExit as stop:
            status = int(stop.code or 0)
    if status:
        return None
    (printed,) = json.loads(out.getvalue())["predictions"]
    row: dict[str, Any] = {"call": call}
    for level in ("hbm", "l2"):
        for direction in ("read", "write"):
            row[f"{level}_{direction}"] = printed["totals"][level][direction]
    for bound in ("compulsory", "no_l2"):
        for direction in ("read", "write"):
            row[f"{bound}_{direction}"] = printed["hbm_bounds"][bound][direction]
    row["flops"] = printed["flops"]
    row["workspace_bytes"] = printed["memory_bytes"]["workspace"]
    row["peak_bytes"] = printed["memory_bytes"]["peak"]
    table = sorted(
        (r["launch"], r["level"], r["tensor"], r["direction"], r["bytes"])
        for r in printed["traffic"]
    )
    row["traffic"] = hashlib.sha256(json.dumps(table).encode()).hexdigest()[:16]
    row["time_s"] = repr(printed["time_s"])
    row["specification_time_s"] = repr(printed["time"][1]["time_s"])
    return row


def recorded(file: Path = FILE) -> list[dict[str, str]]:
    """The rows of the recording."""
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def recorded_at(revision: str) -> list[dict[str, str]]:
    """The rows of the recording as a revision of the repository has it."""
    name = FILE.relative_to(ROOT).as_posix()
    completed = subprocess.run(
        ["git", "-C", str(ROOT), "show", f"{revision}:{name}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return list(csv.DictReader(io.StringIO(completed.stdout)))


def moved(row: dict[str, str]) -> list[Change]:
    """What a recorded row says and what iosim answers now, where they differ."""
    now = answer(row["call"])
    texts = None if now is None else {name: str(value) for name, value in now.items()}
    return list(changes(row, texts, EXACT, TIMES))


def differences(row: dict[str, str]) -> list[str]:
    """The lines that `--compare` prints about one row."""
    return [change.text for change in moved(row)]


def compared(rows: list[dict[str, str]], whole: bool) -> int:
    """Predicts the calls of `rows` anew; prints each difference, or the summary alone. Returns the exit code."""
    everything: list[Change] = []
    for row in rows:
        for change in moved(row):
            if whole:
                print(f"{row['call']}\n    {change.text}")
            everything.append(change)
    print(f"{len(everything)} differences" if whole else summary(everything, len(rows)))
    return 1 if everything else 0


def between(before: list[dict[str, str]], now: dict[str, dict[str, str]]) -> int:
    """Prints the summary between two recordings: of the calls that both hold."""
    both = [row for row in before if row["call"] in now]
    print(
        summary(
            [change for row in both for change in changes(row, now[row["call"]], EXACT, TIMES)],
            len(both),
        )
    )
    if len(both) < max(len(before), len(now)):
        print(
            f"{len(before) - len(both)} calls are recorded no longer, {len(now) - len(both)} are new."
        )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--compare", action="store_true", help="write nothing, print what differs from the recorded"
    )
    parser.add_argument(
        "--summary", action="store_true", help="print the page in place of every difference"
    )
    parser.add_argument(
        "--base", metavar="REV", help="with --summary: from the recording of a revision to today's"
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="calls that contain TEXT")
    options = parser.parse_args()
    rows = [row for row in recorded() if options.only in row["call"]]
    if options.base:
        before = [row for row in recorded_at(options.base) if options.only in row["call"]]
        return between(before, {row["call"]: row for row in rows})
    if options.compare or options.summary:
        return compared(rows, whole=not options.summary)
    rows = [row for call in calls() if (row := answer(call)) is not None]
    with FILE.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} predictions of {len(calls())} calls")
    return 0


if __name__ == "__main__":
    sys.exit(main())
