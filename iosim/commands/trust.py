"""`iosim validate`, `ncu-rule`, `reproduce` and `check-claim`: predictions beside measurements, also on
Nsight Compute's page, and numbers from elsewhere.

What is said of profiled calls is read here: options, and the text of an NVTX range.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.files import json_object, write_whole
from iosim.base.progress import progress
from iosim.base.units import sizes
from iosim.base.words import ECC_STATES
from iosim.commands import common, options
from iosim.commands.options import KNOBS, PROFILED, CommandParser
from iosim.evidence import reproduce as published
from iosim.evidence.claims.check import as_text
from iosim.evidence.claims.check import check_claims as check
from iosim.evidence.cuda.ncu import profiled_of
from iosim.evidence.published.judge import judge
from iosim.evidence.published.tables import is_published, shipped
from iosim.evidence.reproduce import Row
from iosim.evidence.times.groups import TimeGate, times_report
from iosim.evidence.validate import Comparison, Gate, compare, read, summarise
from iosim.evidence.validate.one_launch import LaunchAnswer, answer_launch
from iosim.evidence.validate.profile_rows import read_profile
from iosim.evidence.validate.recognise import KERNELS, Given
from iosim.evidence.validate.report import (
    INTRODUCTION,
    as_page,
    beneath,
    comparison_page,
    tables,
    validated_answer,
)
from iosim.evidence.validate.rows import default_files, measured_on, own_file, text_of_file
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.integrations.ncu.install import install
from iosim.integrations.ncu.report import launches
from iosim.problem.fields import FIELDS
from iosim.show.tables import Cell, Column, Table
from iosim.studies.requests import CLAIMS, ClaimRequest

TABLE_WORST = 6
PUBLISHED = (
    "Errors are |predicted - measured| / measured, of hits in the L2 their difference; plain: chains that write the "
    "scores to memory. Rows on which a constant was fitted are left out of the sums. --format json has every row, and "
    "those that are left out with the reason."
)
FORMATS_OF_TIMES = ("table", "json", "csv")
NOT_WITH_PUBLISHED = (
    "ncu",
    "report",
    "split",
    "across",
    "with_spills",
    "times",
    "fail_above",
    "html",
)
NOT_WITH_TIMES = ("measurements", "ncu", "report", "split", "across", "with_spills", "html")


def validate(args: argparse.Namespace) -> int:
    # Three readings of one command: bytes (the default), times, and published tables. Options of
    # one are refused beside another rather than ignored.
    for name in NOT_WITH_TIMES if args.times else ("every",):
        if getattr(args, name):
            why = (
                "contradicts --times; accepted: one of both"
                if args.times
                else "needs --times; accepted: both"
            )
            raise InputError(f"--{name.replace('_', '-')} {why}")
    if args.times and args.format not in FORMATS_OF_TIMES:
        raise InputError(
            f"--format {args.format} contradicts --times; accepted with it: {', '.join(FORMATS_OF_TIMES)}"
        )
    _check_used(args)
    if args.every is not None and args.every < 1:
        raise InputError(f"--every {args.every} is out of range; accepted: 1 or more")
    if args.published or (
        args.measurements is not None and not args.times and is_published(args.measurements)
    ):
        return _run_published(args)
    return _run_times(args) if args.times else _run_bytes(args)


OF_CALLS = ("seq_q", *PROFILED, "causal", *KNOBS, "persistent")
"""Options that say what a profile leaves open."""


def _check_used(args: argparse.Namespace) -> None:
    """Refuses options that nothing would look at. Raises InputError."""
    needs = dict.fromkeys(OF_CALLS, "ncu") | {"with_spills": "fail_above"}
    contradicts = {"across": "ncu", "measurements": "ncu"}
    for name, other in needs.items():
        if getattr(args, name) not in (None, False) and not getattr(args, other):
            raise InputError(
                f"{options.spelling(name)} goes with {options.spelling(other)}; accepted: both, or neither"
            )
    for name, other in contradicts.items():
        if getattr(args, name) and getattr(args, other):
            raise InputError(
                f"{options.spelling(name)} contradicts {options.spelling(other)}; accepted: one of them"
            )


def _run_bytes(args: argparse.Namespace) -> int:
    if args.report is not None and not Path(args.report).is_dir():
        raise InputError(f"--report '{args.report}' is no directory; accepted: one that exists")
    for name in ("validation.html", "validation.md") if args.report is not None else ():
        common.check_own(Path(args.report) / name, args, "--report")
    gates = [Gate.parse(text, spills=args.with_spills) for text in args.fail_above]
    profile = load_profile(args.gpu).with_ecc(args.ecc)
    if args.ncu is not None:
        comparison = _profiled(args, profile)
    else:
        files = _files(args, profile)
        comparison = compare(
            [row for file in files for row in read(file)], profile, progress("predicting")
        )
    if args.report is not None:
        for kind, written in common.paged(args, lambda: as_page(comparison)).items():
            write_whole(Path(args.report) / f"validation.{kind}", written())
        print(
            f"wrote {Path(args.report) / 'validation.html'} and {Path(args.report) / 'validation.md'}"
        )
    if args.report is None or args.out is not None or args.html is not None:
        _tell(args, comparison, gates)
    if not comparison.residuals:
        reasons = Counter(skipped.reason for skipped in comparison.skipped).most_common(1)
        reason_texts = [
            f"{n} of {len(comparison.skipped)} rows: {reason}" for reason, n in reasons
        ] or ["there are no rows"]
        raise InputError(f"nothing was checked; {reason_texts[0]}")
    return common.held([gate.exceeded(comparison.residuals) for gate in gates])


def _files(args: argparse.Namespace, profile: HardwareProfile) -> list[Path]:
    """The table that is asked for; else the shipped ones of the GPU, for a report on an H200 those of the project's own
    kernels, too. Raises InputError: one was measured on another GPU."""
    files, own_table = default_files(profile.name), own_file()
    if args.report is not None and measured_on(own_table) == measured_on(files[0]):
        files += [own_table]
    if args.measurements is not None:
        files = [Path(args.measurements)]
    # A table of one GPU beside predictions for another is a mistake more often than not.
    for file in () if args.across else files:
        gpu = measured_on(file)
        if gpu is not None and gpu != profile.name:
            accepted = (
                f"--gpu {gpu}, --measurements FILE of your own, or --across to compare all the same"
            )
            raise InputError(
                f"--gpu {args.gpu}: {file.name} was measured on {gpu}; accepted: {accepted}"
            )
    return files


def _profiled(args: argparse.Namespace, profile: HardwareProfile) -> Comparison:
    if args.measurements is not None:
        raise InputError(f"--measurements contradicts --ncu {args.ncu}; give one of them")
    profiled_rows = read_profile(args.ncu, given(args), told, launches)
    for note in profiled_rows.notes:
        print(f"iosim: --ncu: {note}", file=sys.stderr)
    # What no call explains stays in the list, as skipped with its reason.
    comparison = compare(profiled_rows.rows, profile, progress("predicting"))
    return Comparison(comparison.residuals, (*profiled_rows.unmatched, *comparison.skipped))


def _tell(args: argparse.Namespace, comparison: Comparison, gates: Sequence[Gate]) -> None:
    def whole() -> dict[str, Any]:
        rows = [r.to_dict() for r in comparison.residuals]
        skipped = [s.to_dict() for s in comparison.skipped]
        held = [gate.to_dict(comparison.residuals) for gate in gates]
        return {
            "rows": rows,
            **summarise(comparison, split=args.split),
            "gates": held,
            "skipped": skipped,
        }

    def text(_: bool) -> str:
        sections = tables(comparison, split=args.split, rows_shown=TABLE_WORST)
        parts = [f"{s.heading}\n{s.table.text()}" for s in sections if s.table]
        limits = [f"--fail-above {gate.said(comparison.residuals)}\n" for gate in gates]
        return "\n".join([*limits, *parts, INTRODUCTION + "\n", beneath(comparison)])

    pages = common.paged(
        args,
        lambda: comparison_page(comparison, common.typed("validate"), split=args.split),
    )
    common.tell(
        args, validated_answer(comparison), json=whole, rows=comparison.records, text=text, **pages
    )


def _run_times(args: argparse.Namespace) -> int:
    gates = [TimeGate.parse(text) for text in args.fail_above]
    report = times_report(args.every or 1, show=progress("reading tables"))

    def text(_: bool) -> str:
        left_out = (f"{key} left out: {reason}\n" for key, reason in report.missing.items())
        return "\n".join([report.table().text(), report.by_gpu().text(), *left_out])

    common.tell(
        args,
        report.answer,
        json=report.to_dict,
        rows=lambda: (row.record() for row in report.rows),
        text=text,
    )
    return common.held([gate.exceeded(report) for gate in gates])


def _run_published(args: argparse.Namespace) -> int:
    """Tables that others published beside predictions, a row per GPU."""
    for name in NOT_WITH_PUBLISHED:
        if getattr(args, name):
            table = (
                "--published"
                if args.published
                else f"--measurements {args.measurements}, a table of others"
            )
            raise InputError(
                f"--{name.replace('_', '-')} contradicts {table}; accepted: one of both"
            )
    if args.format not in FORMATS_OF_TIMES:
        raise InputError(
            f"--format {args.format} contradicts it; accepted: {', '.join(FORMATS_OF_TIMES)}"
        )
    files = shipped() if args.measurements is None else [Path(args.measurements)]
    verdict = judge(files, progress("predicting"), args.ecc)
    if not verdict.judged:
        raise InputError(f"nothing was checked; {verdict.left_out_line}")
    rows = (row.to_dict() for row in verdict.judged)
    below = f"{verdict.table().text()}\n{verdict.left_out_line}\n{PUBLISHED}\n"
    return common.tell(
        args, verdict.answer, json=verdict.to_dict, rows=lambda: rows, text=lambda _: below
    )


COLUMNS = (
    Column("claim"),
    Column("claimed", kind="right"),
    Column("computed", kind="right"),
    Column("unit"),
    Column("ratio", kind="right"),
)


def number(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def shown(row: Row) -> tuple[Cell, ...]:
    ratio = None if row.ratio is None else f"{row.ratio:.3f}{' (mistake)' if row.mistake else ''}"
    return row.claim, number(row.claimed), number(row.computed), row.unit, ratio


def why(row: Row) -> str:
    mistake = f"a mistake, computed as the source makes it: {row.mistake}" if row.mistake else ""
    return "; ".join(text for text in (row.arithmetic, row.note, mistake) if text)


def plain(titles: dict[str, str], rows: list[Row]) -> str:
    parts = []
    for letter in dict.fromkeys(r.section for r in rows):
        # Rows are numbered within their section: "A3" is the third of section A.
        mine = {
            f"{letter}{n}": r for n, r in enumerate((r for r in rows if r.section == letter), 1)
        }
        table = Table(
            (Column("row"), *COLUMNS), tuple((name, *shown(r)) for name, r in mine.items())
        )
        reasons = "".join(f"  {name}: {why(r)}\n" for name, r in mine.items())
        parts.append(f"{letter}. {titles[letter]}\n\n{table.text()}\n{reasons}")
    return "\n".join(parts)


def markdown(titles: dict[str, str], rows: list[Row]) -> str:
    columns = (*COLUMNS, Column("arithmetic"))
    return "\n".join(
        f"## {letter}. {titles[letter]}\n\n"
        + Table(columns, tuple((*shown(r), why(r)) for r in rows if r.section == letter)).markdown()
        for letter in dict.fromkeys(r.section for r in rows)
    )


def reproduce(args: argparse.Namespace) -> int:
    titles = {s.letter: s.title for s in published.sections()}
    if args.list:
        common.emit("".join(f"{letter}. {title}\n" for letter, title in titles.items()), args.out)
        return 0
    results = published.reproduce(args.section, progress("sections"))
    rows = [row.to_dict() for row in results]
    text = (markdown if args.format == "md" else plain)(titles, results)
    sentence = published.reproduced_answer(results)
    return common.tell(
        args, sentence, json=lambda: {"rows": rows}, rows=lambda: rows, text=lambda _: text
    )


def check_claim(args: argparse.Namespace) -> int:
    if all(getattr(args, name) is None for name in CLAIMS):
        examples = ", ".join(f"--{name} {example}" for name, example in CLAIMS.items())
        raise InputError(f"a claim is missing; accepted: {examples}")
    checks = check(common.request(args, ClaimRequest, problem=common.problem(args)))
    rows = (
        {"claim": c.claim.text, "quantity": c.claim.quantity}
        | m.to_dict()
        | {"slips": "; ".join(m.reading.slips)}
        for c in checks
        for m in c.matches
    )
    answers, document = (
        "\n".join(c.answer() for c in checks),
        {"claims": [c.to_dict() for c in checks]},
    )
    text = "\n".join(map(as_text, checks))
    return common.tell(args, answers, json=lambda: document, rows=lambda: rows, text=lambda _: text)


MAX_CHARACTERS = 1 << 20
SECTION = "IosimAttention"


def ncu_rule(args: argparse.Namespace) -> int:
    if args.install is not None:
        return _install_rule(args)
    # The rule inside Nsight Compute has no iosim: it runs this command, in whatever environment
    # has one, and reads JSON.
    place, where = args.launch, f"--launch '{args.launch}'"
    text = sys.stdin.read(MAX_CHARACTERS) if place == "-" else text_of_file(place, where)
    facts = json_object(text, where, "a launch as the rule writes it")
    launch_answer = answer_launch(
        profiled_of(facts), given(args), _profile(args.gpu, facts).with_ecc(args.ecc), told
    )
    return common.tell(
        args,
        launch_answer.answer(),
        json=launch_answer.to_dict,
        table=lambda: _launch_text(launch_answer),
    )


def _install_rule(args: argparse.Namespace) -> int:
    gpu = []
    if args.gpu is not None:
        load_profile(args.gpu)  # a file by its whole path: the rule runs elsewhere
        gpu = ["--gpu", str(Path(args.gpu).resolve()) if Path(args.gpu).is_file() else args.gpu]
    given(args)
    ecc = [] if args.ecc == ECC_STATES[0] else ["--ecc", args.ecc]
    written = install(args.install, [*gpu, *ecc, *words(args)], [pattern for pattern, _ in KERNELS])
    place = shlex.quote(args.install)
    use = f"ncu --section-folder {place} --section {SECTION} --nvtx PROGRAM"
    common.emit(f"wrote {' and '.join(map(str, written))}\nuse: {use}\n", args.out, code=True)
    return 0


def _launch_text(launch_answer: LaunchAnswer) -> str:
    parts = [f"{launch_answer.answer()}\n"]
    for table in launch_answer.tables():
        rows = [dict(zip(table["header"], row, strict=True)) for row in table["rows"]]
        if rows:
            parts.append(f"{table['title']}\n{Table.of(rows).text()}")
    return "\n".join([*parts, *([f"{launch_answer.advice}\n"] if launch_answer.advice else [])])


def _profile(gpu: str | None, facts: dict[str, Any]) -> HardwareProfile:
    name = gpu or str(facts.get("device") or "")
    if not name:
        raise InputError("the profile does not name its GPU; --gpu NAME is needed")
    try:
        return load_profile(name)
    except InputError as error:
        if gpu:
            raise
        needed = f"--gpu NAME or FILE is needed: {error}"
        raise InputError(f"no hardware profile is of the GPU '{name[:60]}'; {needed}") from None


def given(args: argparse.Namespace) -> Given:
    scheduler = "persistent" if args.persistent else args.scheduler
    # Names of options, and names as counter tables have them: most are the same.
    as_named = ("stages", "order", "heavy_first", "direction", "splits", "fold", "cluster")
    settings: dict[str, Any] = {name: getattr(args, name) for name in as_named}
    settings |= {"section": args.section_heads, "scheduler": scheduler}
    settings["persistent"] = None if scheduler is None else scheduler == "persistent"
    if args.tile is not None:
        settings |= dict(zip(("block_q", "block_k"), args.tile, strict=True))
    stated = {
        k: str(int(v) if isinstance(v, bool) else v) for k, v in settings.items() if v is not None
    }
    names = ("batch", "heads", "kv_heads", "seq_k", "dtype", "causal", "window")
    fields = {name: getattr(args, name) for name in names}
    for name in (name for name in names if name in FIELDS and fields[name] is not None):
        fields[name] = FIELDS[name].check(fields[name])
    seqs = sizes(args.seq_q, "--seq-len") if args.seq_q else ()
    return Given(**fields, seqs=seqs, head_dims=args.head_dim or (), settings=stated)


def words(args: argparse.Namespace) -> list[str]:
    typed_values = {name: getattr(args, name) for name in OF_CALLS}
    return options.typed({name: value for name, value in typed_values.items() if value is not None})


def told(text: str) -> Given:
    """What the text of an NVTX range says behind the word `iosim`: the options of `add_calls`."""
    parser = CommandParser(prog="iosim", add_help=False)
    parser.add_calls("calls")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(
            f"'{text}' is no list of options: {error}; accepted: --batch 2 --heads 16 ..."
        ) from None
    return given(parser.parse_args(words))
