"""`iosim validate`: predictions beside recorded measurements."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.base.progress import progress
from iosim.commands import common, options
from iosim.show.tables import Table

if TYPE_CHECKING:
    from iosim.evidence.validate import Comparison
    from iosim.evidence.validate.given import Given
    from iosim.hardware.profile import HardwareProfile

TABLE_WORST = 6
FORMATS = ("table", "json", "csv", "md", "html")


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "validate", help="predictions beside recorded measurements, and gates on their errors"
    )
    parser.add_argument("--measurements", metavar="FILE", help="CSV, a row a launch or a row a chain (default: the "
                        "shipped ones of library kernels and of chains)")  # fmt: skip
    parser.add_argument("--ncu", metavar="FILE", help="instead: a profile of your own, .ncu-rep or its raw page in CSV "
                        "(ncu --import FILE --csv --page raw)")  # fmt: skip
    parser.add_argument("--gpu", default="h200", metavar="NAME", help="GPU or profile file measured on (default h200)")
    parser.add_argument("--fail-above", action="append", default=[], metavar="QUANTITY[:STATISTIC]=LIMIT",
                        help="exit code 1 if kernels without spills err by more: hbm_read=5%% (the largest error), "
                        "hbm_read:p95=5%%, l2_read:median=0.1%% (repeats)")  # fmt: skip
    parser.add_argument("--split", action="store_true", help="odd-numbered and even-numbered calls apart, too")
    parser.add_argument("--report", metavar="DIR", help="write validation.html and validation.md there: errors by "
                        "level and regime, and the reason of every miss")  # fmt: skip
    common.add_output_options(parser, FORMATS)
    _add_profiled(parser)
    parser.set_defaults(run=run)


def _add_profiled(parser: argparse.ArgumentParser) -> None:
    """What is said of the calls in --ncu FILE; None is not said, and nothing is guessed."""
    g = parser.add_argument_group("the calls in --ncu FILE, as far as kernel names and grids leave them open")
    for name, meaning in (("batch", "sequences"), ("heads", "query heads"), ("kv-heads", "key/value heads (default: as "
                       "query heads)"), ("seq-len-k", "key tokens (default: as query tokens)"),
                       ("window", "keys 0 <= i - j <= W")):  # fmt: skip
        g.add_argument(f"--{name}", type=options.whole, metavar="N", help=meaning)
    g.add_argument("--seq-len", "--seq", dest="seq_len", metavar="N", help="query tokens; of a list each launch takes "
                   "the one that fits its grid")  # fmt: skip
    g.add_argument("--head-dim", metavar="D", help="columns of Q and K; of a list the one that fits its name")
    g.add_argument("--dtype", help="fp16, bf16 or fp32")
    g.add_argument("--causal", action=argparse.BooleanOptionalAction, help="whether keys up to the query are kept")
    g.add_argument("--tile", metavar="QxK", help="of the project's own kernels, as the options below")
    for name in ("stages", "section-heads", "splits"):
        g.add_argument(f"--{name}", type=options.whole, metavar="N")
    g.add_argument("--order")
    g.add_argument("--direction")
    g.add_argument("--heavy-first", action="store_true", default=None)
    g.add_argument("--persistent", action="store_true", default=None)


def run(args: argparse.Namespace) -> int:
    from iosim.evidence.validate import Gate, compare, read
    from iosim.hardware.profile import load_profile

    if args.report is not None and not Path(args.report).is_dir():
        raise InputError(f"--report '{args.report}' is no directory; accepted: one that exists")
    gates = [Gate.parse(text) for text in args.fail_above]
    profile = load_profile(args.gpu)
    if args.ncu is not None:
        comparison = _profiled(args, profile)
    else:
        files = _files(args)
        comparison = compare([row for file in files for row in read(file)], profile, progress("predicting"))
    if args.report is not None:
        write_report(comparison, args.report)
    if args.report is None or args.out is not None:
        common.emit(text_of(comparison, args.format, args.split), args.out)
    if not comparison.residuals:
        raise InputError(_nothing(comparison))
    failed = [message for gate in gates if (message := gate.exceeded(comparison.residuals))]
    if failed:
        print(f"iosim: --fail-above: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _nothing(comparison: Comparison) -> str:
    """That no row was checked, and the reason of most of them."""
    reasons = Counter(skipped.reason for skipped in comparison.skipped).most_common(1)
    why = f"; {reasons[0][1]} of {len(comparison.skipped)} rows: {reasons[0][0]}" if reasons else "; there are no rows"
    return f"nothing was checked{why}"


def _files(args: argparse.Namespace) -> list[Path]:
    """The table that is asked for; else the shipped ones, for a report those of the project's own kernels, too."""
    from iosim.evidence.validate.rows import default_files, own_file

    if args.measurements is not None:
        return [Path(args.measurements)]
    return [*default_files(), *([own_file()] if args.report is not None else [])]


def write_report(comparison: Comparison, folder: str) -> None:
    """validation.html and validation.md in a directory that exists."""
    from iosim.base.files import write_whole
    from iosim.evidence.validate.report import as_page
    from iosim.show.html import html
    from iosim.show.markdown import markdown

    page = as_page(comparison)
    write_whole(Path(folder) / "validation.html", html(page))
    write_whole(Path(folder) / "validation.md", markdown(page))
    print(f"wrote {Path(folder) / 'validation.html'} and {Path(folder) / 'validation.md'}")


def _profiled(args: argparse.Namespace, profile: HardwareProfile) -> Comparison:
    """The launches of --ncu FILE, and those that are not matched."""
    from iosim.evidence.validate import Comparison, compare
    from iosim.evidence.validate.profile_rows import read_profile

    if args.measurements is not None:
        raise InputError(f"--measurements contradicts --ncu {args.ncu}; give one of them")
    profiled_rows = read_profile(args.ncu, _given(args))
    for note in profiled_rows.notes:
        print(f"iosim: --ncu: {note}", file=sys.stderr)
    comparison = compare(profiled_rows.rows, profile, progress("predicting"))
    return Comparison(comparison.residuals, (*profiled_rows.unmatched, *comparison.skipped))


def _given(args: argparse.Namespace) -> Given:
    from iosim.base.units import sizes
    from iosim.evidence.validate.given import Given
    from iosim.kernel.kernel import Tile

    settings: dict[str, Any] = {
        "stages": args.stages, "order": args.order, "heavy_first": args.heavy_first, "section": args.section_heads,
        "direction": args.direction, "persistent": args.persistent, "splits": args.splits,
    }  # fmt: skip
    if args.tile is not None:
        tile = Tile.parse(args.tile)
        settings |= {"block_q": tile.block_q, "block_k": tile.block_k}
    return Given(
        batch=args.batch, heads=args.heads, kv_heads=args.kv_heads, seq_k=args.seq_len_k, dtype=args.dtype,
        causal=args.causal, window=args.window,
        seqs=sizes(args.seq_len, "--seq-len") if args.seq_len else (),
        head_dims=sizes(args.head_dim, "--head-dim") if args.head_dim else (),
        settings={k: str(int(v) if isinstance(v, bool) else v) for k, v in settings.items() if v is not None},
    )  # fmt: skip


def text_of(comparison: Comparison, form: str, split: bool) -> str:
    """The comparison in one of FORMATS."""
    from iosim.evidence.validate import summarise
    from iosim.evidence.validate.sections import INTRODUCTION, sections

    if form == "json":
        rows = [r.to_dict() for r in comparison.residuals]
        skipped = [s.to_dict() for s in comparison.skipped]
        return common.json_text({"schema": 1, "rows": rows, **summarise(comparison, split=split), "skipped": skipped})
    if form == "csv":
        return Table.of(comparison.records()).csv()
    if form in ("md", "html"):
        from iosim.evidence.validate.pages import as_page
        from iosim.show.html import html
        from iosim.show.markdown import markdown

        page = as_page(comparison, common.typed("validate"), split=split)
        return markdown(page) if form == "md" else html(page)
    shown = sections(comparison, split=split, most=TABLE_WORST)
    parts = [f"{s.heading}\n{s.table.text()}" for s in shown if s.table]
    return "\n".join([*parts, INTRODUCTION + "\n"])
