"""`iosim profiles`, `kernels`, `models`, `schema` and `cache`: what iosim knows, and what it keeps between runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iosim.base.data import CACHE, cache_dir
from iosim.base.errors import InputError, unknown_name
from iosim.base.progress import announce
from iosim.base.units import bytes_text, quantity_text, some
from iosim.catalog.libraries import check_file, entry, entry_names, is_choice
from iosim.catalog.libraries.builds import spills
from iosim.catalog.libraries.loader import checked, is_file, kernel_answer
from iosim.catalog.libraries.new_file import new_file
from iosim.commands import common
from iosim.hardware import trust
from iosim.hardware.profile import (
    added_profiles,
    cc_text,
    check_profile_file,
    list_profiles,
    load_profile,
)
from iosim.show.tables import Cell, Column, Table
from iosim.studies.requests import CodeRequest

if TYPE_CHECKING:
    from iosim.prediction.cache import CacheState
    from iosim.studies.models.layers import Model


PROFILE_COLUMNS = (
    Column("name"),
    Column("title", "GPU"),
    Column("compute_capability", "cc", kind="right"),
    Column("sm_count", "SMs", kind="right"),
    Column("l2_bytes", "L2", kind="right"),
    Column("l2_partitions", "L2 partitions", kind="right"),
    Column("dram_bandwidth_bytes_per_s", "HBM bandwidth", kind="right"),
    Column("memory_bytes", "memory", kind="right"),
    Column("from"),
)
COLOURS = {
    "estimate": "yellow",
    "inferred": "yellow",
    "taken": "yellow",
    "measured": "green",
    "fitted": "green",
}
"""Colours of what a number rests on: taken on trust, or measured on this GPU."""


def profiles(args: argparse.Namespace) -> int:
    rows, unreadable = [], []
    added = added_profiles()
    for name in (*list_profiles(), *added):
        try:
            p = load_profile(added.get(name, name))
        except InputError as error:  # a file of the user's own, which the others need not wait for
            unreadable.append(str(error))
            continue
        rows.append(
            {
                "name": name if name in added else p.name,
                "title": p.title,
                "compute_capability": cc_text(p.cc),
                "sm_count": p.sm_count,
                "l2_bytes": p.l2_bytes,
                "l2_partitions": p.l2_partitions,
                "dram_bandwidth_bytes_per_s": p.dram_bandwidth_bytes_per_s,
                "memory_bytes": p.memory_bytes,
                "from": "you" if name in added else "iosim",
            }
        )
    # Tables are for people ("80 GB"), JSON and CSV for programs (bytes): the same rows, two forms.
    cells = (
        tuple("-" if v is None else quantity_text(k, v) for k, v in row.items()) for row in rows
    )
    common.tell(
        args,
        None,
        json=lambda: {"profiles": rows, "unreadable": unreadable},
        rows=lambda: rows,
        table=lambda: Table(PROFILE_COLUMNS, tuple(cells)).text(),
    )
    for line in unreadable:
        announce(f"iosim: left out: {line}", in_pipes=True)
    return 0


def profile(args: argparse.Namespace) -> int:
    p = load_profile(args.name)
    data, basis, groups = p.to_dict(), trust.evidence(p), trust.by_group(p)
    rows = []
    for key, value in data.items():
        if key == "validation":
            continue
        # A table of quantities (rates by number type): a row per entry. A quantity is a table, too,
        # but has a value, a kind and a source.
        if isinstance(value, dict) and "value" not in value:
            rows += [_entry(f"{key}.{k}", v) for k, v in value.items()]
        else:
            rows.append(_entry(key, value))
    cells = [
        row | {"value": quantity_text(row["quantity"].split(".")[0], row["value"])} for row in rows
    ]
    by_group = Table.of(
        {
            "group": group_entry.group,
            "known": group_entry.how,
            "numbers": " ".join(group_entry.numbers),
        }
        for group_entry in groups
    )
    known = by_group.coloured("known", COLOURS).text()
    models = Table.of(
        [
            {
                "model": base.model,
                "rests on": how,
                "numbers": " ".join(names),
                "validated by": base.validated_by or "nothing",
            }
            for base in basis.bases
            for how, names in base.rests_on.items()
        ]
    ).text()
    table = Table.of(cells).coloured("kind", COLOURS).text()
    return common.tell(
        args,
        trust.profile_answer(p),
        rows=lambda: rows,
        text=lambda _: f"{table}\n{basis}\n\n{known}\n{models}",
        json=lambda: {
            "profile": data,
            "evidence": basis.to_dict(),
            "evidence_by_group": [group.to_dict() for group in groups],
        },
    )


def _entry(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        kind = f"{value['kind']} from {value['from']}" if "from" in value else value["kind"]
        return {"quantity": key, "value": value["value"], "kind": kind, "source": value["source"]}
    return {"quantity": key, "value": value, "kind": "", "source": ""}


def check_profile(args: argparse.Namespace) -> int:
    hint = "docs/profiles.md shows what is accepted"
    return common.tell_problems(args, "profile file", check_profile_file(args.file), hint)


def add_profile(args: argparse.Namespace) -> int:
    from iosim.evidence.measure.bundle import add

    name, place = add(args.file, args.name, replace=args.replace)
    common.emit(f"{name}: {place}\n", None)
    return 0


HIDDEN = ("source", "takes")
TILE_TABLES = ("tile", "split_tile", "backward_tile")
TILE_COLUMNS = (
    "causal",
    "dropout",
    "dtype",
    "paged",
    "max_rows",
    "min_shared_memory_per_block_bytes",
    "stages",
    "threads",
    "registers",
    "shared_memory_bytes",
    "edge_k",
)
"""Columns of a table of tiles beside head dimension, compute capability, tile and warps, where a row has them."""
SYSTEMS = (
    (
        "block-sparse",
        "--mask butterfly, strided, window+global, window+first, or blocks from --mask-file",
    ),
    ("variable lengths", "--seq-lens, --seq-lens-k: sequences packed into one batch"),
    (
        "decode",
        "iosim decode; split keys, packed groups, --page-size, --latent-kv, --prefix, --append-kv",
    ),
    ("bias, masks, dropout", "--bias, --key-padding, --mask-storage, --dropout"),
    (
        "distributed",
        "iosim ring: ring, vanilla, balanced, zigzag, striped; beside Megatron-LM and ring self-attention",
    ),
    ("training", "iosim train-memory: naive or flash attention in a transformer"),
    ("Triton", "iosim tiles --triton; iosim.integrations.triton.model for triton.autotune"),
)


def kernel(args: argparse.Namespace) -> int:
    _refuse_choice(args.name, "NAME")
    data = entry(args.name)
    tables = {"spill": spills(data), "backward_spill": spills(data, backward=True)}
    of_it = {} if is_file(args.name) else {"checked": checked(data["name"])}
    document = {**data, **of_it, **{key: list(rows) for key, rows in tables.items() if rows}}
    return common.tell(
        args,
        kernel_answer(data),
        json=lambda: {"kernel": document},
        text=lambda _: _kernel_text({**data, **of_it}),
    )


def new_kernel(args: argparse.Namespace) -> int:
    if args.code is not None:
        from iosim.studies.kernel_from_code import kernel_file

        common.emit(kernel_file(common.request(args, CodeRequest), args.named), args.out, code=True)
        return 0
    if args.base is None:
        raise InputError("--from is missing; accepted: a kernel's name, or --from-code FILE")
    _refuse_choice(args.base, "--from")
    common.emit(new_file(args.base, args.named), args.out, code=True)
    return 0


def _refuse_choice(name: str, word: str) -> None:
    if is_choice(name):
        problem = "is no kernel but a choice among them for a problem and a GPU"
        raise InputError(f"{word} '{name}' {problem}; accepted: {', '.join(entry_names())}")


def check_kernel(args: argparse.Namespace) -> int:
    hint = "`iosim kernels new --from fa2` writes a whole one, with what each key means"
    return common.tell_problems(args, "kernel file", list(check_file(args.file)), hint)


def kernels(args: argparse.Namespace) -> int:
    rows = []
    for name in entry_names():
        data = entry(name)
        requires = data["requires"]
        rows.append(
            {
                "name": name,
                "algorithm": data["algorithm"],
                "title": data["title"],
                "min_cc": requires.get("min_cc"),
                "max_cc": requires.get("max_cc"),
                "dtypes": " ".join(requires["dtypes"]),
                "checked": checked(name)[0],
                "aliases": " ".join(data.get("aliases", ())),
                "source": data["source"],
                "takes": " ".join(
                    (*requires.get("takes", ()), *(["dropout"] * requires.get("dropout", True)))
                ),
            }
        )
    systems = [{"name": name, "where": where} for name, where in SYSTEMS]
    table = Table.of({k: v for k, v in r.items() if k not in HIDDEN} for r in rows).text()
    text = f"{table.rstrip()}\n\n{Table.of({'system': name, 'where': where} for name, where in SYSTEMS).text()}"
    document = {"kernels": rows, "systems": systems}
    return common.tell(args, None, json=lambda: document, rows=lambda: rows, text=lambda _: text)


def _kernel_text(data: Mapping[str, Any]) -> str:
    requires, settings = data["requires"], data["kernel"]
    rows = [("algorithm", data["algorithm"]), ("aliases", _words(data.get("aliases", ())))]
    rows += [("rules at launch", data.get("rules", "none")), ("runs on", _gpus(requires))]
    others = {key: value for key, value in requires.items() if key not in ("min_cc", "max_cc")}
    rows += [(f"requires {key.replace('_', ' ')}", _words(value)) for key, value in others.items()]
    rows += [
        (key.replace("_", " "), _words(value))
        for key, value in settings.items()
        if key != "options"
    ]
    rows += [(f"option {key}", _words(value)) for key, value in settings.get("options", {}).items()]
    rows += [(f"backward {key}", _words(value)) for key, value in data.get("backward", {}).items()]
    width = max(len(label) for label, _ in rows)
    parts = [
        f"{data['name']}: {data['title']}\n",
        *(f"  {label:<{width}}  {text}\n" for label, text in rows if text),
    ]
    for table in TILE_TABLES:
        if table in data:
            parts.append(f"\n{table.replace('_', ' ')}: the first row that holds is taken\n")
            parts.append(Table.of(_tile_rows(data[table])).text())
    rows_of_spills = len(spills(data)) + len(spills(data, backward=True))
    if rows_of_spills:
        parts.append(f"\nspilled registers: {rows_of_spills} builds; --format json lists them\n")
    for key, title in (
        ("source", ""),
        ("checked", " against"),
        ("inferred", ", not published"),
        ("assumed", ""),
    ):
        if data.get(key):
            text = data[key] if isinstance(data[key], str) else "; ".join(data[key])
            parts.append(f"\n{key}{title}: {' '.join(text.split())}\n")
    return "".join(parts)


def _tile_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    table = []
    used = [key for key in TILE_COLUMNS if any(key in row for row in rows)]
    for row in rows:
        below = f"below {cc_text(row['cc_below'])}" if "cc_below" in row else ""
        cells = {
            "head_dim up to": row["head_dim"],
            "cc": below or " ".join(map(cc_text, row.get("cc", ()))) or "any",
        }
        cells |= {"tile": f"{row['block_q']}x{row['block_k']}", "warps": row["warps"]}
        table.append(cells | {key.replace("_", " "): _words(row.get(key, "")) for key in used})
    return table


def _gpus(requires: Mapping[str, Any]) -> str:
    first, last = requires.get("min_cc"), requires.get("max_cc")
    if first is not None and first == last:
        return f"cc {cc_text(first)}"
    parts = [] if first is None else [f"cc {cc_text(first)} and later"]
    parts += [] if last is None else [f"up to cc {cc_text(last)}"]
    return " ".join(parts) or "any GPU"


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{key} {item}" for key, item in value.items())
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


LISTED = (
    Column("name"),
    Column("title", "model"),
    Column("layers", kind="count"),
    Column("kinds", "of them"),
    Column("heads", kind="count"),
    Column("kv_heads", "key/value", kind="count"),
    Column("head_dim", kind="right"),
    Column("token_bytes", "cache per token"),
    Column("aliases"),
)
KINDS = (
    Column("layer"),
    Column("count", "layers", kind="count"),
    Column("heads", kind="count"),
    Column("kv_heads", "key/value", kind="count"),
    Column("head_dim", kind="count"),
    Column("head_dim_v", "of V", kind="count"),
    Column("sees", "a query sees"),
    Column("token_bytes", "cache of a token and layer"),
)


def models(args: argparse.Namespace) -> int:
    from iosim.integrations.models import load_model, preset_names
    from iosim.integrations.models.load import preset

    rows: list[dict[str, Cell]] = []
    for name in preset_names():
        m = load_model(name)
        # One kind stands for the model in a list; `models show` has all of them.
        first = m.kinds[-1]
        width = f"{first.head_dim}"
        if first.head_dim_v != first.head_dim:
            width += f"/{first.head_dim_v}"
        rows.append(
            {
                "name": name,
                "title": m.title,
                "layers": m.layers,
                "kinds": ", ".join(f"{kind.count} {kind.name}" for kind in m.all_kinds),
                "heads": first.heads,
                "kv_heads": first.kv_heads,
                "head_dim": width,
                "token_bytes": m.token_bytes(m.dtype or "bf16"),
                "aliases": " ".join(preset(name).get("aliases", ())),
            }
        )
    table = Table(LISTED, tuple(tuple(row.values()) for row in rows)).without("aliases").text()
    text = f"{table}\nalso: a Hugging Face config.json, or a directory that holds one\n"
    return common.tell(
        args, None, json=lambda: {"models": rows}, rows=lambda: rows, text=lambda _: text
    )


def model(args: argparse.Namespace) -> int:
    from iosim.integrations.models import load_model

    m = load_model(args.name)
    kind = m.dtype or "bf16"
    token = m.token_bytes(kind)
    held = "fp8" if any(k.compress is not None for k in m.kinds) else kind
    keeps = (
        f"keeps {bytes_text(token)} per token in its key/value cache in {held}"
        if m.causal
        else "keeps no cache"
    )
    kinds = ", ".join(f"{k.count} {k.name}" for k in m.all_kinds)
    layers = f"{some(m.layers, 'layer')} of attention ({kinds})"
    if m.states:
        layers = f"{some(m.layers, 'layer')} of attention or with a state ({kinds})"
        keeps += f" and {bytes_text(sum(k.count * k.state_bytes for k in m.states))} of states per sequence"
    sentence = f"{m.title}: {layers}, {keeps}."
    table = Table(
        KINDS,
        tuple(
            (
                k.name,
                k.count,
                k.heads,
                k.kv_heads,
                k.head_dim,
                k.head_dim_v,
                k.sees,
                k.token_bytes(kind) if k.causal else 0,
            )
            for k in m.all_kinds
        ),
    )
    ranks = _latent_ranks(m)
    notes = "".join(f"note: {note}\n" for note in m.notes)
    return common.tell(
        args,
        sentence,
        json=lambda: {"model": m.to_dict()},
        rows=lambda: table,
        text=lambda _: f"{table.text()}\n{ranks}source: {m.source}\n{notes}",
    )


def _latent_ranks(m: Model) -> str:
    """A line on the ranks of multi-head latent attention, which stand once; empty without it."""
    ranks = ""
    # Ranks of multi-head latent attention stand once: the first
    # kind's are shown.
    for latent in [k.latent for k in m.kinds if k.latent is not None and k.compress is None][:1]:
        queries = (
            "queries projected at once"
            if latent.q_rank is None
            else f"queries through {latent.q_rank}"
        )
        ranks = (
            f"latent: {some(latent.kv_rank, 'column')} for keys and values and {latent.rope} with positions, "
            f"{latent.nope} without; {queries}; absorbed for a step of decoding: one key/value head of "
            f"{latent.width}/{latent.kv_rank}\n"
        )
    return ranks


PLACE = Path(__file__).parent / "schemas.json"
"""The schema of each command; what several hold alike stands once, under `shared`."""
SHARED = "$shared"


def documented() -> list[str]:
    return sorted(_file()["commands"])


def schema(command: str) -> dict[str, Any]:
    return dict(_whole(_file()["commands"][command]))


@cache
def _file() -> dict[str, Any]:
    return dict(json.loads(PLACE.read_text(encoding="utf-8")))


def _whole(part: Any) -> Any:
    if isinstance(part, list):
        return [_whole(item) for item in part]
    if not isinstance(part, dict):
        return part
    # Parts that several commands have stand once in the file and are put in here, as deep as
    # they refer to each other.
    if SHARED in part:
        return _whole(_file()["shared"][part[SHARED]])
    return {key: _whole(item) for key, item in part.items()}


def show_schema(args: argparse.Namespace) -> int:
    commands = documented()
    if not args.name:
        common.emit("".join(f"{command}\n" for command in commands), args.out, code=True)
        return 0
    command = " ".join(args.name)
    if command not in commands:
        raise unknown_name("COMMAND", command, commands)
    common.emit(json.dumps(schema(command), indent=1) + "\n", args.out, code=True)
    return 0


def show_cache(args: argparse.Namespace) -> int:
    from iosim.prediction.cache import MOST_BYTES, replay_cache

    cache = replay_cache()
    state = None if cache is None else cache.state()
    # A cache that is off still has a row, of zeros: a program finds the same columns.
    counts = (
        (None, 0, 0, 0)
        if state is None
        else (str(state.place), state.results, state.current, state.bytes)
    )
    keys = ("place", "replays", "current", "bytes", "most_bytes")
    row: dict[str, Any] = dict(zip(keys, (*counts, MOST_BYTES), strict=True))
    text = (
        _off() if state is None else f"{_kept(state)}\nat most {bytes_text(MOST_BYTES)} are kept\n"
    )
    return common.tell(
        args, None, json=lambda: {"cache": row}, rows=lambda: [row], table=lambda: text
    )


def clear_cache(args: argparse.Namespace) -> int:
    from iosim.prediction.cache import replay_cache

    cache = replay_cache()
    if cache is None:
        common.emit(_off(), None)
        return 0
    state = cache.state()
    try:
        cache.clear()
    except OSError as error:
        raise InputError(f"{cache.place} cannot be removed: {error.strerror}") from None
    common.emit(f"dropped: {_kept(state)}\n", None)
    return 0


def _kept(state: CacheState) -> str:
    where = f"{bytes_text(state.bytes)} in {state.place}"
    return f"{some(state.results, 'replay')}, {state.current:,} of this version of iosim, {where}"


def _off() -> str:
    why = f"{CACHE} is off" if cache_dir() is None else "there is no place for it"
    return f"no replays are kept: {why}\n"
