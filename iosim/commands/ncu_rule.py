"""`iosim ncu-rule`: a rule for Nsight Compute that sets predicted bytes beside the counted ones on its own page.

And what is said of profiled calls, here and by `iosim validate --ncu`: options, and the text of an NVTX range.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.files import json_object
from iosim.base.units import sizes
from iosim.commands import common, options
from iosim.commands.options import KNOBS, PROFILED, CommandParser
from iosim.evidence.cuda.ncu import profiled_of
from iosim.evidence.validate.one_launch import LaunchAnswer, answer_launch
from iosim.evidence.validate.recognise import KERNELS, Given
from iosim.evidence.validate.rows import text_of_file
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.integrations.ncu.install import install
from iosim.show.tables import Table

OPTION = "--launch"
MAX_CHARACTERS = 1 << 20
SECTION = "IosimAttention"


def run(args: argparse.Namespace) -> int:
    return _install(args) if args.install is not None else _answer(args)


def _install(args: argparse.Namespace) -> int:
    gpu = []
    if args.gpu is not None:
        load_profile(args.gpu)  # a file by its whole path: the rule runs elsewhere
        gpu = ["--gpu", str(Path(args.gpu).resolve()) if Path(args.gpu).is_file() else args.gpu]
    given(args)
    written = install(args.install, [*gpu, *words(args)], [pattern for pattern, _ in KERNELS])
    place = shlex.quote(args.install)
    use = f"ncu --section-folder {place} --section {SECTION} --nvtx PROGRAM"
    common.emit(f"wrote {' and '.join(map(str, written))}\nuse: {use}\n", args.out, code=True)
    return 0


def _answer(args: argparse.Namespace) -> int:
    facts = _facts(args.launch)
    launch = profiled_of(facts)
    found = answer_launch(launch, given(args), _profile(args.gpu, facts), told)
    return common.tell(args, found.answer(), json=found.to_dict, table=lambda: _text(found))


def _text(found: LaunchAnswer) -> str:
    parts = [f"{found.answer()}\n"]
    for table in found.tables():
        rows = [dict(zip(table["header"], row, strict=True)) for row in table["rows"]]
        if rows:
            parts.append(f"{table['title']}\n{Table.of(rows).text()}")
    return "\n".join([*parts, *([f"{found.advice}\n"] if found.advice else [])])


def _facts(place: str) -> dict[str, Any]:
    text = sys.stdin.read(MAX_CHARACTERS) if place == "-" else text_of_file(place, f"{OPTION} '{place}'")
    return json_object(text, f"{OPTION} '{place}'", "a launch as the rule writes it")


def _profile(asked: str | None, facts: dict[str, Any]) -> HardwareProfile:
    name = asked or str(facts.get("device") or "")
    if not name:
        raise InputError("the profile does not name its GPU; --gpu NAME is needed")
    try:
        return load_profile(name)
    except InputError as error:
        if asked:
            raise
        raise InputError(
            f"no hardware profile is of the GPU '{name[:60]}'; --gpu NAME or FILE is needed: {error}"
        ) from None


def given(args: argparse.Namespace) -> Given:
    scheduler = "persistent" if args.persistent else args.scheduler
    settings: dict[str, Any] = {
        "stages": args.stages, "order": args.order, "heavy_first": args.heavy_first, "section": args.section_heads,
        "direction": args.direction, "splits": args.splits, "scheduler": scheduler, "fold": args.fold,
        "cluster": args.cluster, "persistent": None if scheduler is None else scheduler == "persistent",
    }  # fmt: skip
    if args.tile is not None:
        settings |= dict(zip(("block_q", "block_k"), args.tile, strict=True))
    return Given(
        batch=args.batch, heads=args.heads, kv_heads=args.kv_heads, seq_k=args.seq_k, dtype=args.dtype,
        causal=args.causal, window=args.window,
        seqs=sizes(args.seq_q, "--seq-len") if args.seq_q else (), head_dims=args.head_dim or (),
        settings={k: str(int(v) if isinstance(v, bool) else v) for k, v in settings.items() if v is not None},
    )  # fmt: skip


def words(args: argparse.Namespace) -> list[str]:
    given = {name: getattr(args, name) for name in ("seq_q", *PROFILED, "causal", *KNOBS, "persistent")}
    return options.typed({name: value for name, value in given.items() if value is not None})


def told(text: str) -> Given:
    """What the text of an NVTX range says behind the word `iosim`: the options of `add_calls`."""
    parser = CommandParser(prog="iosim", add_help=False)
    options.add_calls(parser, "calls")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"'{text}' is no list of options: {error}; accepted: --batch 2 --heads 16 ...") from None
    return given(parser.parse_args(words))
