"""`iosim ncu-rule`: a rule for Nsight Compute that sets predicted bytes beside the counted ones on its own page."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.commands import common, profiled
from iosim.commands.parser import CommandParser
from iosim.show.tables import Table

if TYPE_CHECKING:
    from iosim.evidence.validate.one_launch import LaunchAnswer
    from iosim.hardware.profile import HardwareProfile

OPTION = "--launch"
MAX_CHARACTERS = 1 << 20
SECTION = "IosimAttention"


def add_options(parser: CommandParser) -> None:
    parser.description = (
        "Writes a section and a rule for Nsight Compute (ncu --section-folder DIR). The rule asks this "
        "iosim what an attention launch should move and prints it on the profiler's page, beside what was counted. "
        "What names and grids of kernels leave open is said by options here, or by an NVTX range around the call "
        "whose text is 'iosim' and the same options."
    )
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--install", metavar="DIR", help="write iosim_attention.section and iosim_attention.py there")
    how.add_argument(OPTION, metavar="FILE", help="answer for one launch, as the rule describes it in JSON (-: "
                     "standard input)")  # fmt: skip
    common.add_gpu(parser, None, "GPU or profile file (default: the one that the profiler names)")
    profiled.add_calls(parser, "the calls, as far as kernel names, grids and NVTX ranges leave them open")
    common.add_output_options(parser, ("table", "json"))


def run(args: argparse.Namespace) -> int:
    return _install(args) if args.install is not None else _answer(args)


def _install(args: argparse.Namespace) -> int:
    from iosim.evidence.validate.recognise import KERNELS
    from iosim.hardware.profile import load_profile
    from iosim.integrations.ncu.install import install

    gpu = []
    if args.gpu is not None:
        load_profile(args.gpu)  # a file by its whole path: the rule runs elsewhere
        gpu = ["--gpu", str(Path(args.gpu).resolve()) if Path(args.gpu).is_file() else args.gpu]
    profiled.given(args)
    written = install(args.install, [*gpu, *profiled.words(args)], [pattern for pattern, _ in KERNELS])
    place = shlex.quote(args.install)
    use = f"ncu --section-folder {place} --section {SECTION} --nvtx PROGRAM"
    common.emit(f"wrote {' and '.join(map(str, written))}\nuse: {use}\n", args.out, code=True)
    return 0


def _answer(args: argparse.Namespace) -> int:
    from iosim.evidence.cuda.ncu import profiled_of
    from iosim.evidence.validate.one_launch import answer_launch

    facts = _facts(args.launch)
    launch = profiled_of(facts)
    found = answer_launch(launch, profiled.given(args), _profile(args.gpu, facts), profiled.told)
    return common.tell(args, found.answer(), json=found.to_dict, table=lambda: _text(found))


def _text(found: LaunchAnswer) -> str:
    parts = [f"{found.answer()}\n"]
    for table in found.tables():
        rows = [dict(zip(table["header"], row, strict=True)) for row in table["rows"]]
        if rows:
            parts.append(f"{table['title']}\n{Table.of(rows).text()}")
    return "\n".join([*parts, *([f"{found.advice}\n"] if found.advice else [])])


def _facts(place: str) -> dict[str, Any]:
    from iosim.base.files import json_object
    from iosim.evidence.validate.rows import text_of_file

    text = sys.stdin.read(MAX_CHARACTERS) if place == "-" else text_of_file(place, f"{OPTION} '{place}'")
    return json_object(text, f"{OPTION} '{place}'", "a launch as the rule writes it")


def _profile(asked: str | None, facts: dict[str, Any]) -> HardwareProfile:
    from iosim.hardware.profile import load_profile

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
