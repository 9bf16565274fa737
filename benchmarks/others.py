"""Predictions beside what others measured and published: `python benchmarks/others.py`.

Prints docs/validation-others.md; `--write` writes it. Blind: no number of these files reaches a prediction, but the
bytes that FlashAttention-2's build for cc 8.0 spills, which were counted on the A30. Some minutes.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import linear_times
import sparse
import stack_times
from recorders import measurements

from iosim import AttentionProblem, InputError, Overrides, Prediction, load_profile, resolve
from iosim.base.progress import progress
from iosim.base.units import bytes_text
from iosim.evidence.times.tables import kernel_of, problem_of
from iosim.prediction.predictor import predict

PAGE = Path(__file__).resolve().parent.parent / "docs" / "validation-others.md"
SECTOR = 32
GPU = load_profile("mi355x")
FILES = {
    "attention_latency_a30_fa2_nvbench.csv": (
        "JakeFlasher/benchmark_flash_attention: flash-attn 2.6.3, clocks not locked; what a benchmark "
        "times is the whole "
        "call, allocation of O with it"
    ),
    "attention_latency_h100_a6000_llmservingsim.csv": (
        "casys-kaist/LLMServingSim: flash_attn_varlen_func, kernel times; which H100 and which version "
        "is not recorded. Predicted with a CTA a query head and no splits, on the RTX A6000 without the mask "
        "(iosim/evidence/times/tables.py says what shows it)"
    ),
    "attention_latency_a100_vidur.csv": (
        "microsoft/vidur: an older paged kernel, in steps of 1 us, that reaches 60 TFLOP/s: the "
        "catalog's fa2 is another"
    ),
    "attention_latency_a30_flashinfer_vidur.csv": (
        "AKafakA/vidur_opt_scheduler: FlashInfer, which the catalog does not have, set beside fa2"
    ),
    "attention_latency_4090_h100_vllm019_llmservingsim.csv": (
        "casys-kaist/LLMServingSim: vLLM 0.19's module, the store of new keys and values with it"
    ),
    "attention_latency_h20_h800_infersim.csv": (
        "alibaba/InferSim: FlashAttention-3, FlashInfer or FlashMLA; which of the first two decoded is "
        "not stated. On an H20, "
        "whose tensor cores are slow, fa3's 64-row tiles bound what is predicted, and calls ran faster "
        "than such tiles allow"
    ),
    "attention_latency_mi355x_hipkittens.csv": (
        "HazyResearch/HipKittens: its own kernels and AITER's, batch 16; at head_dim 64 AITER's forward is set beside "
        "ck. Its backwards of grouped heads stand in two files, in one of which AITER's take three times as long"
    ),
    "attention_latency_misc.csv": "figures of the FlashAttention papers read bar by bar, and pages",
}
"""Each file's source and what stays true of all its rows."""
SAME_KERNEL = ("attention_latency_a30_fa2_nvbench.csv", "attention_latency_misc.csv")
"""Files of kernels that the catalog has, timed by themselves; those of the L4 were timed by the host."""
HAND_WRITTEN = {"scores": 302_333_600, "softmax": 591_000_000, "output": 412_000_000}
"""DRAM bytes of three hand-written fp32 kernels on an L4 (MattJBorowski1991/QuantizedMHA, profiles): 8,192 tokens."""


LEAST_TILE = 8192
LOADED = {
    "implicit_l2_cross": "{}, anywhere",
    "implicit_l2_intra": "{} of a cluster",
    "explicit_mcast": "{} of a cluster, multicast",
}
"""How loads were shared in published_b200_multicast.csv."""
XCD_HITS = {
    "heads fastest": ({"order": "head", "chiplets": 1}, "2.4 %"),
    "blocks fastest": ({"order": "query", "chiplets": 1}, "93.6 %"),
    "a head an L2": ({"order": "query", "chiplets": 8}, "-"),
}
"""Order -> its settings, and the share of requests that hit in the L2s of an MI355X (ROCm/FlyDSL#919, TCC_HIT_sum and
TCC_MISS_sum of 64 bytes): 64 heads, 65,536 tokens, head_dim 128, bf16, dense. The one called a head an XCD there deals
out blocks fastest, as its review says."""


@dataclass(frozen=True)
class Timed:
    """A published time and the predicted one; `error` is predicted over measured, less one."""

    file: str
    gpu: str
    kernel: str
    phase: str
    start: str
    error: float


def table(name: str) -> list[dict[str, str]]:
    with open(measurements(name), encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def prediction(row: dict[str, str]) -> Prediction:
    problem = problem_of(row)
    return predict(problem, kernel_of(row, problem), row["gpu"], l2_start=row["l2_start"])


def timed(rows: Sequence[dict[str, str]]) -> tuple[list[Timed], list[tuple[str, str, str]]]:
    """Predicted times beside those of the rows, and (file, GPU, reason) of rows that are refused."""
    timed_rows, refused = [], []
    for row in progress("predicting")(rows):
        try:
            p = prediction(row)
        except InputError as error:
            refused.append((row["file"], row["gpu"], str(error).split(";")[0]))
            continue
        timed_rows.append(
            Timed(
                row["file"],
                row["gpu"],
                row["kernel"],
                f"{row['phase']} {row.get('pass') or 'fwd'}",
                row["l2_start"],
                p.time_s / float(row["seconds"]) - 1,
            )
        )
    return timed_rows, refused


def counted() -> list[tuple[str, str, int, int]]:
    """(start, tokens, measured, predicted) DRAM bytes of each row of the A30's counters."""
    rows_counted, known = [], {}
    for r in table("published_a30_fa2.csv"):
        key = (r["seq"], r["window"], r["causal"], r["l2_start"])
        if key not in known:
            problem = AttentionProblem(
                heads=32,
                kv_heads=8,
                seq_q=int(r["seq"]),
                head_dim=128,
                dtype="fp16",
                mask="window",
                window=int(r["window"]),
                window_right=0 if r["causal"] == "1" else int(r["window"]),
            )
            known[key] = predict(problem, "flash-attn", "a30", l2_start=r["l2_start"]).total("hbm")
        rows_counted.append((r["l2_start"], r["seq"], SECTOR * int(r["dram_sectors"]), known[key]))
    return rows_counted


def percent(values: Iterable[float]) -> str:
    return f"{100 * statistics.median(values):.1f} %"


def signed(values: Iterable[float]) -> str:
    return f"{100 * statistics.median(values):+.0f} %"


def counters_section() -> list[str]:
    rows = counted()
    lines = [
        "## HBM bytes of FlashAttention-2 on an A30",
        "",
        "flash-attn 2.6.3, 32 query heads, 8 key heads, head_dim 128, windows of 128, 512 and 1,024, "
        "causal or not; DRAM",
        "sectors read and written together (`experiments/measurements/published_a30_fa2.csv`). Cold: "
        "flushed before each pass.",
        "Warm: not. 512 tokens run warm without HBM: there 0.1 to 0.4 MB were counted. "
        "[Mechanism](replay.md#experiments).",
        "",
        "| L2 | tokens | rows | measured, MB | predicted, MB | median error | largest |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for start in ("cold", "warm"):
        for tokens in ("512", "1024", "2048", "4096", "8192"):
            mine = [(m, p) for s, n, m, p in rows if (s, n) == (start, tokens)]
            spans = [f"{min(v) / 1e6:.1f} to {max(v) / 1e6:.1f}" for v in zip(*mine, strict=True)]
            errors = [abs(p / m - 1) for m, p in mine]
            counted_rows = (
                ("-", "-")
                if (start, tokens) == ("warm", "512")
                else (percent(errors), f"{100 * max(errors):.1f} %")
            )
            lines.append(
                f"| {start} | {int(tokens):,} | {len(mine)} | {spans[0]} | {spans[1]} | {counted_rows[0]} | {counted_rows[1]} |"
            )
    return lines


def hand_written_section() -> list[str]:
    p = predict(AttentionProblem(heads=1, seq_q=8192, head_dim=32, dtype="fp32"), "naive", "l4")
    lines = [
        "",
        "## HBM bytes of hand-written kernels on an L4",
        "",
        "fp32, one head of 32 columns, 8,192 tokens, three launches with an N x N matrix (268 MB) "
        "between them, tiles of 16x16.",
        "Bytes are a rate times a time. They stand beside `naive`, whose tiles are larger and whose launches "
        "find what the one",
        "before left. A warp of those kernels reads a row of P again for each 16 columns of O.",
        "",
        "| launch | measured | predicted |",
        "| --- | ---: | ---: |",
    ]
    for (name, measured), launch in zip(HAND_WRITTEN.items(), p.chain.launches, strict=True):
        bytes_ = int(p.traffic.total("hbm", launch=launch.name))
        lines.append(f"| {name} | {bytes_text(measured)} | {bytes_text(bytes_)} |")
    return lines


def hits_section() -> list[str]:
    problem = AttentionProblem(heads=64, seq_q=65536, head_dim=128, dtype="bf16")
    lines = [
        "",
        "## L2 hits on an MI355X",
        "",
        "64 heads, 65,536 tokens, head_dim 128, bf16, dense, tiles of 256x64. Counted: ROCm/FlyDSL#919, requests of 64 "
        "bytes. `behind the",
        "L2s` is what they ask of the memory-side cache.",
        "",
        "| order | hits counted | predicted | behind the L2s | HBM |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for order, (settings, measured) in XCD_HITS.items():
        p = predict(problem, resolve("hipkittens", problem, GPU, Overrides(**settings)), GPU)
        assert p.side is not None
        assert p.l2_hit_rate is not None
        cells_text = f"{bytes_text(p.side.read)} | {bytes_text(p.hbm.read)}"
        lines.append(f"| {order} | {measured} | {100 * p.l2_hit_rate:.1f} % | {cells_text} |")
    return lines


def multicast_section() -> list[str]:
    """Bytes of TMA loads on a B200 over those that reach SMs, by how many CTAs load the same."""
    lines = [
        "## TMA loads on a B200",
        "",
        "Over bytes into SMs, medians of 34 tiles of 8 KB and more (`experiments/measurements/published_b200_multicast"
        ".csv`),",
        "and the best rate. iosim counts bytes into SMs, and HBM bytes once a group. What slices serve in all, less",
        "what they serve to SMs, crosses the fabric between the halves. Pairs that multicast halve what slices serve;",
        "so do times here. Equal requests merge before the slices, in a cluster and from 16 CTAs on: times here have",
        "them all. Clusters of four lose a third of the rate; no kernel here has them.",
        "",
        "| CTAs that load the same | slices serve SMs | slices, in all | HBM | into SMs |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    rows = [r for r in table("published_b200_multicast.csv") if int(r["tile_bytes"]) >= LEAST_TILE]
    for mode, text in LOADED.items():
        for cluster, sharing in sorted(
            {(int(r["cluster"]), int(r["sharing"])) for r in rows if r["mode"] == mode}
        ):
            mine = [
                r
                for r in rows
                if (r["mode"], int(r["cluster"]), int(r["sharing"])) == (mode, cluster, sharing)
            ]

            cells = [
                f"{statistics.median(int(r[name]) / int(r['into_sm_bytes']) for r in mine):.2f}"
                for name in ("slice_bytes", "slice_all_bytes", "dram_read_bytes")
            ]
            rate = max(int(r["into_sm_bytes"]) / int(r["time_ns"]) for r in mine) / 1e3
            lines.append(f"| {text.format(sharing)} | {' | '.join(cells)} | {rate:.1f} TB/s |")
    return [*lines, ""]


def times_section(timed_rows: Sequence[Timed]) -> list[str]:
    lines = [
        "",
        "## Times",
        "",
        "Of each file, GPU, kernel, phase and start at most 40 rows are drawn by a hash of their shape",
        "(`experiments/measurements/published_attention_times.csv`). The error is predicted over measured "
        "less one: the median with its",
        "sign, the median and the ninetieth percentile without. `L2` is the start: as the same call "
        "left it, or flushed.",
        "",
        "| file | GPU | kernel | phase | L2 | rows | median | median of sizes | p90 |",
        "| --- | --- | --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    groups = dict.fromkeys((t.file, t.gpu, t.kernel, t.phase, t.start) for t in timed_rows)
    for group in sorted(groups):
        errors = sorted(
            t.error for t in timed_rows if (t.file, t.gpu, t.kernel, t.phase, t.start) == group
        )
        sizes = sorted(map(abs, errors))
        ninth = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
        file = group[0].removeprefix("attention_latency_").removesuffix(".csv")
        lines.append(
            f"| {file} | {' | '.join(group[1:])} | {len(errors)} | {signed(errors)} | {percent(sizes)} | "
            f"{100 * ninth:.0f} % |"
        )
    lines += ["", "What is true of all rows of a file:", ""]
    return lines + [f"- {file}: {text}." for file, text in FILES.items()]


def left_out_section(refused: Sequence[tuple[str, str, str]]) -> list[str]:
    counts = {
        (r["file"], r["gpu"], r["reason"]): int(r["rows"]) for r in table("published_left_out.csv")
    }
    for why in refused:
        counts[why] = counts.get(why, 0) + 1
    lines = [
        "",
        "## Rows left out",
        "",
        "| file | GPU | rows | reason |",
        "| --- | --- | ---: | --- |",
    ]
    for (file, gpu, reason), n in sorted(counts.items()):
        lines.append(
            f"| {file.removeprefix('attention_latency_').removesuffix('.csv')} | {gpu} | {n:,} | {reason} |"
        )
    return lines


def sparse_section() -> list[str]:
    return [
        "## DeepSeek sparse attention",
        "",
        "Each launch of GLM-5's by itself in a CUDA graph, warm, on 1 to 131,072 queries (`python "
        "benchmarks/sparse.py`; AIConfigurator's data,",
        "`experiments/measurements/published_sparse_attention.csv`). Four constants were fitted on the other half of "
        "the drawn rows, none on",
        "DeepSeek-V4's (many queries, window and compressed keys). Equal scores take the top-k's longest way, which is "
        "not described: they take twice as long.",
        "A step as vLLM runs it holds more than the kernel. Nobody has counted bytes of these kernels.",
        "",
        *sparse.errors(sparse.held_out(), flat=False).markdown().splitlines(),
        "",
    ]


def text(left_out: bool = False) -> str:
    """The page; with the rows that were left out, if asked."""
    timed_rows, refused = timed(table("published_attention_times.csv"))
    same = [abs(t.error) for t in timed_rows if t.file in SAME_KERNEL and t.gpu != "l4"]
    rest = [abs(t.error) for t in timed_rows if t.file not in SAME_KERNEL or t.gpu == "l4"]
    lines = [
        "# What others measured",
        "",
        f"HBM bytes of FlashAttention-2 on an A30 are within 6 % cold and 10 % or 2 MB warm. Of {len(timed_rows)} "
        f"times, the {len(same)} of",
        f"kernels that the catalog has, timed by themselves, are off by {percent(same)} (median). Times "
        "of older stacks, of other",
        f"kernels, of whole modules and of an MI355X are off by {percent(rest)}: most are faster here, by what runs "
        "beside the kernel.",
        "",
        "Made by `python benchmarks/others.py --write`; without `--write` it lists the rows left out, too. No row "
        "reaches a prediction,",
        "but for the bytes that FlashAttention-2 spills on compute capability 8.0. They were counted on the A30's L2.",
        "The papers' own numbers: [published numbers](generated/claims.md).",
        "",
    ]
    lines += [*counters_section(), *hand_written_section(), *hits_section(), *multicast_section()]
    lines += [*sparse_section(), *times_section(timed_rows)]
    lines += linear_times.section(linear_times.judged())
    lines += stack_times.section()
    return "\n".join([*lines, *(left_out_section(refused) if left_out else ())]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    if parser.parse_args().write:
        PAGE.write_text(text(), encoding="utf-8")
    else:
        sys.stdout.write(text(left_out=True))


if __name__ == "__main__":
    main()
