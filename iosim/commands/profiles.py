"""`iosim profiles list | show NAME | check FILE | add FILE`: the GPUs that iosim knows."""

from __future__ import annotations

import argparse
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import announce
from iosim.base.units import quantity_text
from iosim.commands import common
from iosim.commands.parser import CommandParser
from iosim.show.tables import RIGHT, Column, Table

COLUMNS = (Column("name"), Column("title", "GPU"), Column("compute_capability", "cc", RIGHT),
           Column("sm_count", "SMs", RIGHT), Column("l2_bytes", "L2", RIGHT),
           Column("l2_partitions", "L2 partitions", RIGHT),
           Column("dram_bandwidth_bytes_per_s", "HBM bandwidth", RIGHT), Column("memory_bytes", "memory", RIGHT),
           Column("from"))  # fmt: skip
KINDS = {"estimate": "yellow", "inferred": "yellow", "taken": "yellow", "measured": "green", "fitted": "green"}
"""Colours of what a number rests on: taken on trust, or measured on this GPU."""


def add_options(parser: CommandParser) -> None:
    of_bundle = "of iosim calibrate --bundle, or a profile that ends in .toml"
    *_, add = common.add_actions(
        parser,
        ("list", "all profiles: those shipped, and your own", "", "", common.FORMATS),
        ("show", "every number of a profile, with its source", "name", "GPU or profile file", common.FORMATS),
        ("check", "what is wrong with a profile file of your own", "file", "", ("table", "json")),
        ("add", "take a calibration's bundle, or a profile file, among your own profiles", "file", of_bundle, ()),
    )
    add.add_argument("--name", help="name of the profile (default: that in the file)")
    add.add_argument("--replace", action="store_true", help="put it in the place of your own profile of that name")


def run(args: argparse.Namespace) -> int:
    return {"list": _list, "show": _show, "check": _check, "add": _add}[args.action](args)


def _list(args: argparse.Namespace) -> int:
    from iosim.hardware.profile import added_profiles, cc_text, list_profiles, load_profile

    rows, unreadable = [], []
    own = added_profiles()
    for name in (*list_profiles(), *own):
        try:
            p = load_profile(own.get(name, name))
        except InputError as error:  # a file of the user's own, which the others need not wait for
            unreadable.append(str(error))
            continue
        rows.append({
            "name": name if name in own else p.name, "title": p.title,
            "compute_capability": cc_text(p.cc),
            "sm_count": p.sm_count, "l2_bytes": p.l2_bytes, "l2_partitions": p.l2_partitions,
            "dram_bandwidth_bytes_per_s": p.dram_bandwidth_bytes_per_s, "memory_bytes": p.memory_bytes,
            "from": "you" if name in own else "iosim",
        })  # fmt: skip
    common.tell(args, None, json=lambda: {"profiles": rows, "unreadable": unreadable}, rows=lambda: rows,
                table=lambda: Table(COLUMNS, _cells(rows)).text())  # fmt: skip
    for line in unreadable:
        announce(f"iosim: left out: {line}", in_pipes=True)
    return 0


def _cells(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple("-" if v is None else quantity_text(k, v) for k, v in row.items()) for row in rows)


def _show(args: argparse.Namespace) -> int:
    from iosim.hardware.profile import load_profile
    from iosim.hardware.trust import answer, by_group, evidence

    profile = load_profile(args.name)
    data, basis, groups = profile.to_dict(), evidence(profile), by_group(profile)
    rows = []
    for key, value in data.items():
        if key == "validation":
            continue
        if isinstance(value, dict) and "value" not in value:
            rows += [_entry(f"{key}.{k}", v) for k, v in value.items()]
        else:
            rows.append(_entry(key, value))
    shown = [row | {"value": quantity_text(row["quantity"].split(".")[0], row["value"])} for row in rows]
    known = Table.of([
        {"group": one.group, "known": one.how, "numbers": " ".join(one.numbers)} for one in groups
    ]).coloured("known", KINDS).text()  # fmt: skip
    models = Table.of([
        {"model": one.model, "rests on": how, "numbers": " ".join(names), "validated by": one.validated_by or "nothing"}
        for one in basis.bases for how, names in one.rests_on.items()
    ]).text()  # fmt: skip
    table = Table.of(shown).coloured("kind", KINDS).text()
    return common.tell(
        args, answer(profile), rows=lambda: rows, text=lambda _: f"{table}\n{basis}\n\n{known}\n{models}",
        json=lambda: {"profile": data, "evidence": basis.to_dict(),
                      "evidence_by_group": [group.to_dict() for group in groups]},
    )  # fmt: skip


def _entry(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        kind = f"{value['kind']} from {value['from']}" if "from" in value else value["kind"]
        return {"quantity": key, "value": value["value"], "kind": kind, "source": value["source"]}
    return {"quantity": key, "value": value, "kind": "", "source": ""}


def _check(args: argparse.Namespace) -> int:
    from iosim.hardware.profile import check_profile_file

    hint = "docs/profiles.md shows what is accepted"
    return common.tell_problems(args, "profile file", check_profile_file(args.file), hint)


def _add(args: argparse.Namespace) -> int:
    from iosim.evidence.measure.bundle import add

    name, place = add(args.file, args.name, replace=args.replace)
    common.emit(f"{name}: {place}\n", None)
    return 0
