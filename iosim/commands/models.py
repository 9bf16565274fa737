"""`iosim models list | show NAME`: the models that iosim knows, and what it reads from a config.json."""

from __future__ import annotations

import argparse

from iosim.base.units import some
from iosim.commands import common
from iosim.commands.parser import CommandParser
from iosim.show.tables import Cell, Column, Table

LISTED = (Column("name"), Column("title", "model"), Column("layers", kind="count"), Column("kinds", "of them"),
          Column("heads", kind="count"), Column("kv_heads", "key/value", "count"), Column("head_dim", kind="right"),
          Column("token_bytes", "cache a token"), Column("aliases"))  # fmt: skip
KINDS = (Column("layer"), Column("count", "layers", "count"), Column("heads", kind="count"),
         Column("kv_heads", "key/value", "count"), Column("head_dim", kind="count"),
         Column("head_dim_v", "of V", "count"), Column("sees", "a query sees"),
         Column("token_bytes", "cache of a token and layer"))  # fmt: skip


def add_options(parser: CommandParser) -> None:
    show = "a model's layers by kind, and where its numbers stand"
    common.add_actions(
        parser,
        ("list", "all models that --model knows by name", "", "", common.FORMATS),
        ("show", show, "name", "model, config.json, or its directory", common.FORMATS),
    )


def run(args: argparse.Namespace) -> int:
    return (_list if args.action == "list" else _show)(args)


def _list(args: argparse.Namespace) -> int:
    from iosim.integrations.models import load_model, preset_names
    from iosim.integrations.models.load import preset

    rows: list[dict[str, Cell]] = []
    for name in preset_names():
        m = load_model(name)
        first = m.kinds[-1]
        width = f"{first.head_dim}" + f"/{first.head_dim_v}" * (first.head_dim_v != first.head_dim)
        rows.append({
            "name": name, "title": m.title, "layers": m.layers,
            "kinds": ", ".join(f"{kind.count} {kind.name}" for kind in m.all_kinds), "heads": first.heads,
            "kv_heads": first.kv_heads, "head_dim": width,
            "token_bytes": m.token_bytes(m.dtype or "bf16"), "aliases": " ".join(preset(name).get("aliases", ())),
        })  # fmt: skip
    table = Table(LISTED, tuple(tuple(row.values()) for row in rows)).without("aliases")
    also = "also: a Hugging Face config.json, or a directory that holds one\n"
    return common.tell(args, None, json=lambda: {"models": rows}, rows=lambda: rows,
                       table=lambda: f"{table.text()}\n{also}")  # fmt: skip


def _show(args: argparse.Namespace) -> int:
    from iosim.base.units import bytes_text
    from iosim.integrations.models import load_model

    m = load_model(args.name)
    kind = m.dtype or "bf16"
    token = m.token_bytes(kind)
    keeps = f"keeps {bytes_text(token)} a token in its key/value cache in {kind}" if m.causal else "keeps no cache"
    kinds = ", ".join(f"{k.count} {k.name}" for k in m.all_kinds)
    answer = f"{m.title}: {some(m.layers, 'layer')} of attention ({kinds}), {keeps}."
    table = Table(KINDS, tuple(
        (k.name, k.count, k.heads, k.kv_heads, k.head_dim, k.head_dim_v, k.sees, k.token_bytes(kind) if k.causal else 0)
        for k in m.all_kinds
    ))  # fmt: skip
    ranks = ""
    for latent in [k.latent for k in m.kinds if k.latent is not None][:1]:
        queries = "queries projected at once" if latent.q_rank is None else f"queries through {latent.q_rank}"
        ranks = (
            f"latent: {some(latent.kv_rank, 'column')} for keys and values and {latent.rope} with positions, "
            f"{latent.nope} without; {queries}; absorbed for a step of decoding: one key/value head of "
            f"{latent.width}/{latent.kv_rank}\n"
        )
    notes = "".join(f"note: {note}\n" for note in m.notes)
    return common.tell(args, answer, json=lambda: {"model": m.to_dict()}, rows=lambda: table,
                       text=lambda _: f"{table.text()}\n{ranks}source: {m.source}\n{notes}")  # fmt: skip
