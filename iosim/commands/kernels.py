"""`iosim kernels list | show NAME`: the catalog."""

from __future__ import annotations

import argparse
from typing import Any

from iosim.base.errors import InputError
from iosim.commands import common
from iosim.show.tables import Table

HIDDEN = ("source", "takes")
"""Columns for which a table has no room."""
SYSTEMS = (
    ("block-sparse", "--mask butterfly, strided, window+global, or blocks from --mask-file"),
    ("variable lengths", "--seq-lens, --seq-lens-k: sequences packed into one batch"),
    ("decode", "iosim decode; split keys, packed groups, --page-size, --latent-kv, --prefix, --append-kv"),
    ("bias, masks, dropout", "--bias, --key-padding, --mask-storage, --dropout"),
    ("distributed", "iosim ring: ring, vanilla, balanced, zigzag, striped; beside Megatron-LM and ring self-attention"),
    ("training", "iosim train-memory: naive or flash attention in a transformer"),
    ("Triton", "iosim tiles --triton; iosim.integrations.triton.model for triton.autotune"),
)
"""What is made of these kernels, and where."""


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser("kernels", help="list and show the catalog of kernels")
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|show")
    listing = actions.add_parser("list", help="all kernels")
    common.add_output_options(listing)
    show = actions.add_parser("show", help="a kernel's tiles, order, and where they come from")
    show.add_argument("name", metavar="NAME")
    common.add_output_options(show, ("json",))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from iosim.kernel.libraries import entry, entry_names, is_choice

    if args.action == "show":
        if is_choice(args.name):
            raise InputError(f"NAME '{args.name}' is no kernel but a choice among them for a problem and a GPU; "
                             f"accepted: {', '.join(entry_names())}")  # fmt: skip
        common.emit(common.json_text({"schema": 1, "kernel": dict(entry(args.name))}), args.out)
        return 0
    rows = []
    for name in entry_names():
        data = entry(name)
        requires = data["requires"]
        rows.append({
            "name": name, "algorithm": data["algorithm"], "title": data["title"], "min_cc": requires.get("min_cc"),
            "max_cc": requires.get("max_cc"), "dtypes": " ".join(requires["dtypes"]),
            "aliases": " ".join(data.get("aliases", ())), "source": data["source"],
            "takes": " ".join((*requires.get("takes", ()), *(["dropout"] * requires.get("dropout", True)))),
        })  # fmt: skip
    if args.format == "json":
        systems = [{"name": name, "where": where} for name, where in SYSTEMS]
        common.emit(common.json_text({"schema": 1, "kernels": rows, "systems": systems}), args.out)
    elif args.format == "csv":
        common.emit(Table.of(rows).csv(), args.out)
    else:
        table = Table.of([{k: v for k, v in r.items() if k not in HIDDEN} for r in rows]).text()
        made = Table.of([{"system": name, "where": where} for name, where in SYSTEMS]).text()
        common.emit(f"{table.rstrip()}\n\n{made}", args.out)
    return 0
