"""Prints tables about the Hopper kernels, those of kernels/README.md among them: `python experiments/sm90_table.py`."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator
from pathlib import Path

from sm90_columns import KNOBS

MEASUREMENTS = Path(__file__).resolve().parent / "measurements"
BACKWARD_KNOBS = ("block_q", "stages", "score_stages", "sums", "overlap")
FORWARD, BACKWARD, ORDERED = "flash_fwd_sm90", "flash_bwd_sm90", "flash_bwd_sm90_ordered"
Row = dict[str, str]

STEPS = {
    "128": {
        "one tile a CTA, one Q buffer, sequential": "2 128 2 1 one_tile 1 sequential free 0",
        "persistent, a static list": "2 128 2 1 static 1 sequential free 0",
        "persistent, a counter": "2 128 2 1 dynamic 1 sequential free 0",
        "two Q buffers: **the fastest**": "2 128 2 2 dynamic 1 sequential free 0",
        "and products in turns": "2 128 2 2 dynamic 1 sequential products 0",
        "and exponentials in turns": "2 128 2 2 dynamic 1 sequential exponentials 0",
        "interleaved": "2 128 2 2 dynamic 1 interleaved free 0",
        "overlapped": "2 128 2 2 dynamic 1 overlapped free 0",
        "overlapped, products in turns": "2 128 2 2 dynamic 1 overlapped products 0",
        "overlapped, exponentials in turns": "2 128 2 2 dynamic 1 overlapped exponentials 0",
        "eager": "2 128 2 2 dynamic 1 eager free 0",
        "eager, products in turns, 176 keys, one Q buffer": "2 176 2 1 dynamic 1 eager products 0",
        "three warpgroups, 80 keys, one Q buffer": "3 80 2 1 dynamic 1 sequential free 0",
        "clusters of two": "2 128 2 2 dynamic 2 sequential free 0",
        "2 of 8 exponentials by the polynomial": "2 128 2 2 dynamic 1 sequential free 2",
    },
    "64": {
        "two warpgroups, 128 keys, one Q buffer, sequential": "2 128 2 1 dynamic 1 sequential free 0",
        "three warpgroups": "3 128 2 1 dynamic 1 sequential free 0",
        "four stages, two Q buffers": "3 128 4 2 dynamic 1 sequential free 0",
        "exponentials in turns: **the fastest under a mask**": "3 128 4 2 dynamic 1 sequential exponentials 0",
        "overlapped": "3 128 4 2 dynamic 1 overlapped free 0",
        "four warpgroups, 64 keys, sequential": "4 64 4 2 dynamic 1 sequential free 0",
        "eager": "4 64 4 2 dynamic 1 eager free 0",
        "products in turns: **the fastest without a mask**": "4 64 4 2 dynamic 1 eager products 0",
        "two stages": "4 64 2 2 dynamic 1 eager products 0",
        "clusters of two": "4 64 4 2 dynamic 2 eager products 0",
        "1 of 8 exponentials by the polynomial": "4 64 4 2 dynamic 1 eager products 1",
        "2 of 8": "4 64 4 2 dynamic 1 eager products 2",
    },
    "256": {
        "one tile a CTA, eager, products in turns": "2 64 2 1 one_tile 1 eager products 0",
        "sequential": "2 64 2 1 dynamic 1 sequential free 0",
        "overlapped": "2 64 2 1 dynamic 1 overlapped free 0",
        "eager": "2 64 2 1 dynamic 1 eager free 0",
        "eager, products in turns: **the fastest**": "2 64 2 1 dynamic 1 eager products 0",
        "overlapped, 80 keys": "2 80 2 1 dynamic 1 overlapped free 0",
        "clusters of two": "2 64 2 1 dynamic 2 eager products 0",
    },
}
"""What to show of the sweep, by head_dim: a name, and the knobs in the order of KNOBS."""

BACKWARD_STEPS = {
    "128": {
        "one stage of Q and dO": "64 1 1 copied same_queries",
        "two stages: **the fastest**": "64 2 1 copied same_queries",
        "three stages": "64 3 1 copied same_queries",
        "two stages of dS": "64 2 2 copied same_queries",
        "dQ added from the registers": "64 2 1 added same_queries",
        "dQ added in order": "64 2 1 ordered same_queries",
        "dQ of the former queries under the exponentials": "64 2 1 copied former_queries",
        "and dQ added from the registers": "64 2 1 added former_queries",
    },
    "64": {
        "one stage of Q and dO": "128 1 1 copied same_queries",
        "two stages": "128 2 1 copied same_queries",
        "dQ of the former queries under the exponentials": "128 2 1 copied former_queries",
        "and dQ added from the registers: **the fastest**": "128 2 1 added former_queries",
        "dQ added in order": "128 2 1 ordered former_queries",
        "two stages of dS": "128 2 2 added former_queries",
        "three stages of Q and dO": "128 3 1 added former_queries",
        "dP of the same queries under the exponentials": "128 2 1 added same_queries",
    },
}
"""The same of the backward's sweep, in the order of BACKWARD_KNOBS."""


def rows_of(name: str) -> list[Row]:
    with (MEASUREMENTS / name).open(newline="") as file:
        return list(csv.DictReader(file))


def calls(rows: list[Row], regime: str) -> dict[tuple[str, ...], dict[str, Row]]:
    """The rows of each problem, by implementation."""
    grouped: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        if row["regime"] == regime:
            problem = tuple(
                row[x] for x in ("head_dim", "heads", "kv_heads", "seq_q", "causal", "dtype")
            )
            grouped.setdefault(problem, {})[row["implementation"]] = row
    return grouped


def speeds(rows: list[Row], own_name: str = FORWARD) -> Iterator[str]:
    more = " in order |" if own_name == BACKWARD else ""
    yield (
        "| head_dim | heads x tokens | causal | type | ours | cuDNN | ours / its | PyTorch flash | ours / its |"
        + more
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |" + (" --- |" if more else "")
    for (d, heads, kv_heads, seq, causal, dtype), by in calls(rows, "burst").items():
        own_tflops, cudnn, flash = (
            float(by[x]["tflops"]) for x in (own_name, "cudnn", "pytorch_flash")
        )
        last = f" {float(by[ORDERED]['tflops']):.0f} |" if more else ""
        shape = f"{heads if heads == kv_heads else f'{heads} on {kv_heads}'} x {seq}"
        ratios = f"{own_tflops:.0f} | {cudnn:.0f} | {own_tflops / cudnn:.2f} | {flash:.0f} | {own_tflops / flash:.2f}"
        yield f"| {d} | {shape} | {'yes' if causal == '1' else 'no'} | {dtype} | {ratios} |{last}"


def means(rows: list[Row], own_name: str = FORWARD) -> Iterator[str]:
    yield "| head_dim | causal | over cuDNN: least, geometric mean | over PyTorch flash: least, geometric mean |"
    yield "| --- | --- | --- | --- |"
    ratios: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (d, _, _, _, causal, _), by in calls(rows, "burst").items():
        own_tflops, cudnn, flash = (
            float(by[x]["tflops"]) for x in (own_name, "cudnn", "pytorch_flash")
        )
        ratios.setdefault((d, causal), []).append((own_tflops / cudnn, own_tflops / flash))
    for (d, causal), pairs in ratios.items():
        cells = [
            f"{min(x):.2f}, {math.exp(sum(map(math.log, x)) / len(x)):.2f}"
            for x in zip(*pairs, strict=True)
        ]
        yield f"| {d} | {'yes' if causal == '1' else 'no'} | {cells[0]} | {cells[1]} |"


def sustained(rows: list[Row]) -> Iterator[str]:
    yield "| head_dim | heads x tokens | causal | flash_fwd_sm90 (clock, MHz) | cuDNN | PyTorch flash |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for (d, heads, _, seq, causal, _), by in calls(rows, "sustained").items():
        cells = [f"{float(row['tflops']):.0f} ({row['sm_clock_mhz']})" for row in by.values()]
        yield f"| {d} | {heads} x {seq} | {'yes' if causal == '1' else 'no'} | {' | '.join(cells)} |"


def steps(rows: list[Row], head_dim: str) -> Iterator[str]:
    yield f"| head_dim {head_dim} | 4096 | causal | 16384 | causal |"
    yield "| --- | --- | --- | --- | --- |"
    rates = {
        (" ".join(row[knob] for knob in KNOBS), row["seq_q"], row["causal"]): row["tflops"]
        for row in rows
        if row["head_dim"] == head_dim
    }
    for name, knobs in STEPS[head_dim].items():
        cells = [
            f"{float(rates[knobs, seq, causal]):.0f}"
            for seq in ("4096", "16384")
            for causal in "01"
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def backward_steps(rows: list[Row], head_dim: str) -> Iterator[str]:
    """In the order that the launcher takes by default: heads fastest under a mask, key blocks fastest without one."""
    yield f"| head_dim {head_dim} | 4096 | causal | 16384 | causal |"
    yield "| --- | --- | --- | --- | --- |"
    rates = {
        (" ".join(row[knob] for knob in BACKWARD_KNOBS), row["seq_q"], row["causal"]): row["tflops"]
        for row in rows
        if row["head_dim"] == head_dim
        and row["order"] == ("head" if row["causal"] == "1" else "query")
    }
    for name, knobs in BACKWARD_STEPS[head_dim].items():
        cells = [
            f"{float(rates[knobs, seq, causal]):.0f}"
            for seq in ("4096", "16384")
            for causal in "01"
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def packed(rows: list[Row]) -> Iterator[str]:
    yield "| heads | batch x queries on keys | a head a tile, ms | a group a tile | gain | cuDNN | PyTorch flash |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    grouped: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        problem = tuple(row[x] for x in ("heads", "kv_heads", "batch", "seq_q", "seq_k"))
        packing = "apart" if row["pack"] == "1" else "packed"
        name = packing if row["implementation"] == FORWARD else row["implementation"]
        grouped.setdefault(problem, {})[name] = float(row["ms"])
    for (heads, kv_heads, batch, seq_q, seq_k), ms in grouped.items():
        times = f"{ms['apart']:.3f} | {ms['packed']:.3f} | {ms['apart'] / ms['packed']:.2f}"
        shape = f"{heads} on {kv_heads} | {batch} x {seq_q} on {seq_k}"
        yield f"| {shape} | {times} | {ms['cudnn']:.3f} | {ms['pytorch_flash']:.3f} |"


def order_of(row: Row) -> str:
    section = f", sections of {row['section_heads']}" if row["section_heads"] != "0" else ""
    return f"{row['order']}{section}, {row['blocks'].replace('_', ' ')}, {row['direction']}"


def default_of(rows: list[Row], causal: str) -> Row:
    """The row of the order that bench_sm90.py, or bench_bwd_sm90.py, takes by default."""
    backward = rows[0]["implementation"] == BACKWARD
    order = (
        ("head", "heavy_first")
        if causal == "1"
        else ("query", "heavy_first" if backward else "light_first")
    )
    names = ("order", "blocks", "section_heads", "direction")
    return next(row for row in rows if tuple(row[x] for x in names) == (*order, "0", "ascending"))


def orders(rows: list[Row]) -> Iterator[str]:
    yield "| head_dim | heads x tokens | causal | the default | the fastest order | the slowest |"
    yield "| --- | --- | --- | --- | --- | --- |"
    grouped: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        grouped.setdefault(
            tuple(row[x] for x in ("head_dim", "heads", "seq_q", "causal")), []
        ).append(row)

    for (d, heads, seq, causal), several in grouped.items():
        default = default_of(several, causal)
        ranked = sorted(several, key=lambda x: float(x["tflops"]))
        cells = [f"{float(x['tflops']):.0f} ({order_of(x)})" for x in (ranked[-1], ranked[0])]
        mask = "yes" if causal == "1" else "no"
        yield f"| {d} | {heads} x {seq} | {mask} | {float(default['tflops']):.0f} | {' | '.join(cells)} |"


def order_bytes(rows: list[Row]) -> Iterator[str]:
    yield "| head_dim | heads x tokens | causal | compulsory | fewest | the default | most |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    grouped: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if (row["schedule"], row["cluster"]) == ("dynamic", "1"):
            problem = tuple(row[x] for x in ("head_dim", "heads", "kv_heads", "seq_q", "causal"))
            grouped.setdefault(problem, []).append(row)
    for (d, heads, kv_heads, seq, causal), several in grouped.items():
        shape = f"{heads if heads == kv_heads else f'{heads} on {kv_heads}'} x {seq}"
        compulsory = (int(heads) + 2 * int(kv_heads)) * int(seq) * int(d) * 2 / 1e9
        ranked = sorted(several, key=lambda x: int(x["hbm_read"]))
        fewest, highest = (
            f"{int(x['hbm_read']) / 1e9:.2f} ({order_of(x)})" for x in (ranked[0], ranked[-1])
        )
        default = int(default_of(several, causal)["hbm_read"]) / 1e9
        mask = "yes" if causal == "1" else "no"
        yield f"| {d} | {shape} | {mask} | {compulsory:.2f} | {fewest} | {default:.2f} | {highest} |"


def tables() -> dict[str, list[str]]:
    """The tables of kernels/README.md, by a name that says which."""
    return {
        "means": list(means(rows_of("h200_sm90_times.csv"))),
        "backward means": list(means(rows_of("h200_bwd_sm90_times.csv"), BACKWARD)),
    }


def long_tables() -> dict[str, list[str]]:
    """Each call, and what knobs and orders are worth, likewise; too long for a page."""
    sweep, backward_sweep = rows_of("h200_sm90_sweep.csv"), rows_of("h200_bwd_sm90_sweep.csv")
    backward = [row for row in rows_of("h200_bwd_sm90_orders.csv") if row["causal"] == "1"]
    named = {f"steps {d}": list(steps(sweep, d)) for d in STEPS}
    named |= {
        f"backward steps {d}": list(backward_steps(backward_sweep, d)) for d in BACKWARD_STEPS
    }
    return named | {
        "sustained": list(sustained(rows_of("h200_sm90_times.csv"))),
        "packed": list(packed(rows_of("h200_sm90_packed.csv"))),
        "speeds": list(speeds(rows_of("h200_sm90_times.csv"))),
        "backward": list(speeds(rows_of("h200_bwd_sm90_times.csv"), BACKWARD)),
        "orders": list(orders(rows_of("h200_sm90_orders.csv"))),
        "backward orders": list(orders(backward)),
        "bytes": list(order_bytes(rows_of("h200_sm90_orders_bytes.csv"))),
    }


def main() -> int:
    for name, lines in (tables() | long_tables()).items():
        print(f"{name}\n", *lines, "", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
