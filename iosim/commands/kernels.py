"""`iosim kernels list | show NAME | check FILE | new --from NAME`: the catalog, and kernel files of one's own."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.commands import common
from iosim.hardware.profile import cc_text
from iosim.kernel.libraries import check_file, entry, entry_names, is_choice
from iosim.kernel.libraries.builds import spills
from iosim.kernel.libraries.loader import answer, checked, is_file
from iosim.kernel.libraries.new_file import new_file
from iosim.show.tables import Table

HIDDEN = ("source", "takes")
TILE_TABLES = ("tile", "split_tile", "backward_tile")
TILE_COLUMNS = ("causal", "dropout", "dtype", "paged", "max_rows", "min_shared_memory_per_block_bytes", "stages",
                "threads", "registers", "shared_memory_bytes", "edge_k")  # fmt: skip
"""Columns of a table of tiles beside head dimension, compute capability, tile and warps, where a row has them."""
SYSTEMS = (
    ("block-sparse", "--mask butterfly, strided, window+global, window+first, or blocks from --mask-file"),
    ("variable lengths", "--seq-lens, --seq-lens-k: sequences packed into one batch"),
    ("decode", "iosim decode; split keys, packed groups, --page-size, --latent-kv, --prefix, --append-kv"),
    ("bias, masks, dropout", "--bias, --key-padding, --mask-storage, --dropout"),
    ("distributed", "iosim ring: ring, vanilla, balanced, zigzag, striped; beside Megatron-LM and ring self-attention"),
    ("training", "iosim train-memory: naive or flash attention in a transformer"),
    ("Triton", "iosim tiles --triton; iosim.integrations.triton.model for triton.autotune"),
)


def show(args: argparse.Namespace) -> int:
    _refuse_choice(args.name, "NAME")
    data = entry(args.name)
    tables = {"spill": spills(data), "backward_spill": spills(data, backward=True)}
    of_it = {} if is_file(args.name) else {"checked": checked(data["name"])}
    shown = {**data, **of_it, **{key: list(rows) for key, rows in tables.items() if rows}}
    return common.tell(args, answer(data), json=lambda: {"kernel": shown}, text=lambda _: _text({**data, **of_it}))


def new(args: argparse.Namespace) -> int:
    _refuse_choice(args.base, "--from")
    common.emit(new_file(args.base, args.named), args.out, code=True)
    return 0


def _refuse_choice(name: str, word: str) -> None:
    if is_choice(name):
        raise InputError(
            f"{word} '{name}' is no kernel but a choice among them for a problem and a GPU; "
            f"accepted: {', '.join(entry_names())}"
        )


def check(args: argparse.Namespace) -> int:
    hint = "`iosim kernels new --from fa2` writes a whole one, with what each key means"
    return common.tell_problems(args, "kernel file", list(check_file(args.file)), hint)


def listed(args: argparse.Namespace) -> int:
    rows = []
    for name in entry_names():
        data = entry(name)
        requires = data["requires"]
        rows.append({
            "name": name, "algorithm": data["algorithm"], "title": data["title"], "min_cc": requires.get("min_cc"),
            "max_cc": requires.get("max_cc"), "dtypes": " ".join(requires["dtypes"]),
            "checked": checked(name)[0], "aliases": " ".join(data.get("aliases", ())), "source": data["source"],
            "takes": " ".join((*requires.get("takes", ()), *(["dropout"] * requires.get("dropout", True)))),
        })  # fmt: skip
    systems = [{"name": name, "where": where} for name, where in SYSTEMS]
    table = Table.of([{k: v for k, v in r.items() if k not in HIDDEN} for r in rows]).text()
    systems_text = Table.of({"system": name, "where": where} for name, where in SYSTEMS).text()
    return common.tell(args, None, json=lambda: {"kernels": rows, "systems": systems}, rows=lambda: rows,
                       table=lambda: f"{table.rstrip()}\n\n{systems_text}")  # fmt: skip


def _text(data: Mapping[str, Any]) -> str:
    requires, settings = data["requires"], data["kernel"]
    rows = [("algorithm", data["algorithm"]), ("aliases", _words(data.get("aliases", ())))]
    rows += [("rules at launch", data.get("rules", "none")), ("runs on", _gpus(requires))]
    rows += [
        (f"requires {key.replace('_', ' ')}", _words(value))
        for key, value in requires.items()
        if key not in ("min_cc", "max_cc")
    ]
    rows += [(key.replace("_", " "), _words(value)) for key, value in settings.items() if key != "options"]
    rows += [(f"option {key}", _words(value)) for key, value in settings.get("options", {}).items()]
    rows += [(f"backward {key}", _words(value)) for key, value in data.get("backward", {}).items()]
    width = max(len(label) for label, _ in rows)
    parts = [f"{data['name']}: {data['title']}\n", *(f"  {label:<{width}}  {text}\n" for label, text in rows if text)]
    for table in TILE_TABLES:
        if table in data:
            parts.append(f"\n{table.replace('_', ' ')}: the first row that holds is taken\n")
            parts.append(Table.of(_tile_rows(data[table])).text())

    rows_of_spills = len(spills(data)) + len(spills(data, backward=True))
    if rows_of_spills:
        parts.append(f"\nspilled registers: {rows_of_spills} builds; --format json lists them\n")
    for key, title in (("source", ""), ("checked", " against"), ("inferred", ", not published"), ("assumed", "")):
        if data.get(key):
            text = data[key] if isinstance(data[key], str) else "; ".join(data[key])
            parts.append(f"\n{key}{title}: {' '.join(text.split())}\n")
    return "".join(parts)


def _tile_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    table = []
    used = [key for key in TILE_COLUMNS if any(key in row for row in rows)]
    for row in rows:
        below = f"below {_cc(row['cc_below'])}" if "cc_below" in row else ""
        cells = {"head_dim up to": row["head_dim"], "cc": below or " ".join(map(_cc, row.get("cc", ()))) or "any"}
        cells |= {"tile": f"{row['block_q']}x{row['block_k']}", "warps": row["warps"]}
        table.append(cells | {key.replace("_", " "): _words(row.get(key, "")) for key in used})
    return table


def _gpus(requires: Mapping[str, Any]) -> str:
    first, last = requires.get("min_cc"), requires.get("max_cc")
    if first is None and last is None:
        return "any GPU"
    if first == last:
        return f"cc {_cc(first)}"
    return " ".join(
        [f"cc {_cc(first)} and later"] * (first is not None) + [f"up to cc {_cc(last)}"] * (last is not None)
    )


def _cc(number: int | None) -> str:
    return "" if number is None else cc_text(number)


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{key} {one}" for key, one in value.items())
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
