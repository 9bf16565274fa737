"""Tables of what was predicted and measured of orders: `python experiments/orders_proof.py table`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

Row = dict[str, str]
PROBLEM = ("kernel", "heads", "kv_heads", "tokens", "head_dim", "causal")
ORDER = ("order", "section_heads", "start", "direction", "scheduler")
OWN, TRITON = "flash-sm90", "triton"
README = (
    ("8", "8", "32768", "128", "1"),
    ("32", "32", "4096", "128", "0"),
    ("32", "32", "8192", "128", "1"),
)
Pair = tuple[Row, Row]
"""A case as predicted and as measured."""


def joined(predicted: Sequence[Row], measured: Sequence[Row]) -> dict[tuple[str, ...], list[Pair]]:
    """The cases of each kernel and problem, predicted and measured."""
    by_case = {tuple(row[x] for x in (*PROBLEM, *ORDER)): row for row in measured}
    grouped: dict[tuple[str, ...], list[Pair]] = {}
    for row in predicted:
        pair = row, by_case[tuple(row[x] for x in (*PROBLEM, *ORDER))]
        grouped.setdefault(tuple(row[x] for x in PROBLEM), []).append(pair)
    return grouped


def moved(row: Row) -> int:
    """Bytes at HBM."""
    return int(row["hbm_read"]) + int(row["hbm_write"])


def first(several: Sequence[Pair]) -> Pair:
    """iosim's first pick."""
    return min(several, key=lambda pair: int(pair[0]["rank"]))


def shape_of(problem: Sequence[str]) -> str:
    """Heads, tokens, width and mask in words."""
    heads, kv_heads, tokens, head_dim, causal = problem
    grouped = heads if heads == kv_heads else f"{heads} on {kv_heads}"
    return f"{grouped} x {int(tokens):,}, {head_dim}{', causal' if causal == '1' else ''}"


def order_of(row: Row) -> str:
    """An order, short."""
    fastest = {"query": "queries", "head": "heads"}[row["order"]]
    fastest = f"sections of {row['section_heads']}" if row["section_heads"] != "0" else fastest
    start = {"heavy-first": ", heavy first", "light-first": "", "fold": ", folded"}[row["start"]]
    way = {"ascending": "", "descending": ", down", "alternating": ", in turns"}[row["direction"]]
    return f"{fastest}{start}{way}, {row['scheduler']}"


def time_ratio(several: Sequence[Pair]) -> float:
    """Measured time of the first pick over that of the fastest order."""
    return float(first(several)[1]["ms"]) / min(float(m["ms"]) for _, m in several)


def byte_ratio(several: Sequence[Pair]) -> float:
    """Counted bytes of the first pick over the fewest."""
    return moved(first(several)[1]) / min(moved(m) for _, m in several)


def picks(grouped: dict[tuple[str, ...], list[Pair]], kernel: str) -> Iterator[str]:
    """A row a problem."""
    yield (
        "| problem | orders | iosim's first pick | its time over the best's | the worst's | GB predicted, counted | "
        "fewest, most |"
    )
    yield "| --- | ---: | --- | ---: | ---: | --- | --- |"
    for (name, *problem), several in grouped.items():
        if name != kernel:
            continue
        best, seen = first(several)
        times = [float(m["ms"]) for _, m in several]
        sizes = [moved(m) / 1e9 for _, m in several]
        mark = " (README)" if tuple(problem) in README and kernel == OWN else ""
        yield (
            f"| {shape_of(problem)}{mark} | {len(several)} | {order_of(best)} | {time_ratio(several):.3f} | "
            f"{max(times) / min(times):.2f} | {moved(best) / 1e9:.3f}, {moved(seen) / 1e9:.3f} | "
            f"{min(sizes):.3f}, {max(sizes):.3f} |"
        )


def default_of(several: Sequence[Pair]) -> Row:
    """The order that the kernel's launcher takes by default, as it was measured."""
    causal = several[0][0]["causal"] == "1"
    wanted = (
        ("head", "0", "heavy-first", "ascending", "dynamic")
        if causal
        else ("query", "0", "light-first", "ascending", "dynamic")
    )
    return next(m for p, m in several if tuple(p[x] for x in ORDER) == wanted)


def beside(grouped: dict[tuple[str, ...], list[Pair]], measured: Sequence[Row]) -> Iterator[str]:
    """flash_fwd_sm90 with iosim's pick and with its default order, cuDNN and FlashAttention-2: milliseconds."""
    library = {
        tuple(row[x] for x in PROBLEM): float(row["ms"]) for row in measured if not row["order"]
    }
    yield "| problem | iosim's pick, ms | default order | cuDNN | FlashAttention-2 | cuDNN / pick | FA2 / pick |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for (name, *problem), several in grouped.items():
        if name == OWN:
            pick = float(first(several)[1]["ms"])
            default = float(default_of(several)["ms"])
            cudnn, flash = (library[other, *problem] for other in ("cudnn", "pytorch_flash"))
            yield (
                f"| {shape_of(problem)} | {pick:.3f} | {default:.3f} | {cudnn:.3f} | {flash:.3f} | "
                f"{cudnn / pick:.2f} | {flash / pick:.2f} |"
            )


def summary(grouped: dict[tuple[str, ...], list[Pair]]) -> Iterator[str]:
    """How often the pick is near the best, and how far bytes are off over all orders."""
    yield (
        "| kernel | problems | pick within 2 % of the best time | 5 % | median | within 5 % of the fewest bytes | "
        "bytes of all orders: median error, p95 |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
    for kernel in (OWN, TRITON):
        several = [pairs for (name, *_), pairs in grouped.items() if name == kernel]
        times, sizes = (
            [time_ratio(pairs) for pairs in several],
            [byte_ratio(pairs) for pairs in several],
        )
        errors = sorted(abs(moved(p) / moved(m) - 1) for pairs in several for p, m in pairs)
        yield (
            f"| {kernel} | {len(several)} | {sum(x <= 1.02 for x in times)} | {sum(x <= 1.05 for x in times)} | "
            f"{median(times):.3f} | {sum(x <= 1.05 for x in sizes)} | {100 * median(errors):.1f} %, "
            f"{100 * errors[int(0.95 * len(errors))]:.0f} % of {len(errors)} |"
        )


def tables(predicted: Sequence[Row], measured: Sequence[Row]) -> list[str]:
    """All tables under their names."""
    grouped = joined(predicted, measured)
    named = {
        "summary": list(summary(grouped)),
        "flash_fwd_sm90": list(picks(grouped, OWN)),
        "the Triton kernel": list(picks(grouped, TRITON)),
        "beside others": list(beside(grouped, measured)),
    }
    return [line for name, lines in named.items() for line in (name, "", *lines, "")]
