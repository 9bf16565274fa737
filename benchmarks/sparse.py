"""Times of DeepSeek sparse attention's launches beside those that AIConfigurator published, by GPU and launch.

    python benchmarks/sparse.py             the held-out half: medians; with --rows every row
    python benchmarks/sparse.py --fitted    the other half, on which constants were fitted
    python benchmarks/sparse.py --markdown  the table of docs/validation-others.md

The rows (experiments/measurements/published_sparse_attention.csv) are of GLM-5: 64 heads, an indexer of 32 x 128,
2,048 picks; each is one launch replayed in a CUDA graph, from an L2 as the call before left it. All queries of a
sequence pick its first keys. Of the top-k's two kinds of scores `top_last` rises at the end, `flat` are all equal and
take the kernel's longest way. Paged logits are DeepSeek-V4's, one query over a quarter of its
context's keys. The rows named c4 and c128 are DeepSeek-V4's too, nothing fitted on them: the logits of many queries,
each a sequence of its own (SGLang's); and the attention over a window and a 128th of the keys, of a step of decoding
(vLLM's) or of any number of queries (SGLang's). HBM bytes are by the capacity rule.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path

from iosim import AttentionProblem, load_profile, resolve
from iosim.catalog.algorithms.indexer import scored_chain
from iosim.catalog.algorithms.mla import plan_mla
from iosim.prediction.predictor import Request
from iosim.prediction.replays import Replays
from iosim.show.tables import Column, Table

PICKS = 2048
ROWS = Path(__file__).parents[1] / "experiments" / "measurements" / "published_sparse_attention.csv"
TITLES = {
    "logits": "indexer logits",
    "paged logits": "paged indexer logits",
    "top_k": "top-k",
    "main": "gather and sparse MLA",
    "c4 logits": "paged indexer logits of many queries",
    "c128 step": "window and compressed keys, a step",
    "c128 queries": "window and compressed keys",
}
LAUNCHES = {
    "paged logits": ("logits",),
    "c4 logits": ("logits",),
    "c128 step": (),
    "c128 queries": (),
}
"""Title -> what is timed, where it is not the launch of that name; none named: all."""
COLUMNS = (
    Column("gpu", "GPU"),
    Column("launch"),
    Column("n", "rows", "count"),
    Column("ms", "measured, ms"),
    Column("median"),
    Column("size", "median of sizes"),
    Column("p90"),
)


def predicted_ms(row: Mapping[str, str]) -> float:
    """Milliseconds of the row's launch."""
    queries = int(row["seq_q"])
    launch = row["launch"]
    batch = int(row["batch"])
    gathers, paged = launch == "main", launch == "paged logits"
    keys = queries + int(row["cached"])
    problem = AttentionProblem(
        batch=batch,
        heads=64,
        seq_q=queries,
        seq_k=min(keys, PICKS) if gathers else keys,
        head_dim=576,
        head_dim_v=512,
        dtype="bf16",
        mask="none" if gathers else "causal",
        latent_kv=True,
        top_k=PICKS,
        index_heads=64 if paged else 32,
        page_size=64 if paged else None,
    )
    profile = load_profile(row["gpu"])
    compressed = launch.startswith("c")
    if compressed:
        problem = compressed_problem(row)
    kernel = resolve("dsv4" if compressed else "dsa", problem, profile)
    chain = (
        scored_chain(problem, kernel)
        if "logits" in launch or launch == "top_k"
        else plan_mla(problem, kernel)
    )
    timed = LAUNCHES.get(launch, (launch,))
    launches = tuple(launch for launch in chain.launches if not timed or launch.name in timed)
    used = {access.tensor for launch in launches for access in launch.accesses}
    chain = chain.__class__({n: t for n, t in chain.tensors.items() if n in used}, launches)
    request = Request(
        problem, kernel, profile, chain=chain, l2_start="warm", method="capacity", launched="graph"
    )
    return 1e3 * request.predict(Replays()).time.total_s


def compressed_problem(row: Mapping[str, str]) -> AttentionProblem:
    """A call of DeepSeek-V4-Flash's. SGLang's attention takes the keys of as many tokens as all sequences add."""
    batch, queries, ratio = (
        int(row["batch"]),
        int(row["seq_q"]),
        4 if row["launch"] == "c4 logits" else 128,
    )
    added = batch * queries if row["launch"] == "c128 queries" else queries
    shape = {
        "heads": 64,
        "head_dim": 512,
        "dtype": "bf16",
        "latent_kv": True,
        "page_size": 64,
        "cache_dtype": "fp8",
        "mask": "window",
        "window": 127,
        "compress_ratio": ratio,
    }
    if ratio == 4:
        shape |= {"top_k": 512, "index_heads": 64}
    return AttentionProblem(batch=batch, seq_q=queries, seq_k=added + int(row["cached"]), **shape)


def held_out(fitted: bool = False) -> list[dict[str, str]]:
    """The rows that nothing was fitted on; or the others."""
    with ROWS.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if (row["half"] == "fitted") == fitted]


def errors(rows: Iterable[Mapping[str, str]], every_row: bool = False, flat: bool = True) -> Table:
    """Errors by GPU and launch; `flat`: with those of equal scores."""
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in (row for row in rows if flat or row["scores"] != "flat"):
        ms = float(row["ms"])
        predicted = predicted_ms(row)
        title = TITLES[row["launch"]] + (", equal scores" if row["scores"] == "flat" else "")
        groups.setdefault((title, row["gpu"]), []).append((ms, predicted / ms - 1))
        if every_row:
            shape = f"{row['batch']} x {row['seq_q']} + {row['cached']}"
            print(
                f"{row['gpu']:9} {title:28} {shape:24} {ms:10.4f} {predicted:10.4f} {predicted / ms - 1:+.0%}"
            )
    lines = []
    for (title, gpu), cells in sorted(groups.items()):
        signed = [error for _, error in cells]
        sizes = sorted(map(abs, signed))
        lines.append(
            (
                gpu,
                title,
                len(cells),
                f"{min(ms for ms, _ in cells):.3g} to {max(ms for ms, _ in cells):.3g}",
                f"{statistics.median(signed):+.0%}",
                f"{statistics.median(sizes):.1%}",
                f"{sizes[-(-9 * len(sizes) // 10) - 1]:.0%}",
            )
        )
    return Table(COLUMNS, tuple(lines))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--fitted", action="store_true", help="the half on which constants were fitted"
    )
    parser.add_argument("--rows", action="store_true", help="every row")
    parser.add_argument("--markdown", action="store_true", help="as a table of Markdown")
    options = parser.parse_args()
    scores = errors(held_out(options.fitted), options.rows)
    print(scores.markdown() if options.markdown else scores.text())


if __name__ == "__main__":
    main()
