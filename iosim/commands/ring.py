"""`iosim ring`: attention over several GPUs: chunk schedules, idle time, bytes on the links, time and memory."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from iosim.base.progress import progress
from iosim.commands import common, options, with_model
from iosim.commands.parser import COMMON
from iosim.show.tables import Table

if TYPE_CHECKING:
    from iosim.studies.distributed.ring import Ring
    from iosim.studies.distributed.stack import RingStack


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "ring", help="attention over several GPUs: chunk schedules, idle time, link bytes, time and memory"
    )
    common.add_gpu(parser, of_old=("--profile", "--profiles"))
    number = common.group(parser, COMMON)
    number.add_argument("--num-gpus", type=options.whole, default=8, metavar="P", action=options.One,
                        help="number of GPUs (default: 8)")  # fmt: skip
    number.add_argument("--gpus", action=options.Gone, dest="gone", instead="--num-gpus N, and --gpu NAME")
    common.add_kernel(parser, "default", "kernel of a pair of chunks")
    with_model.add_options(parser, layers=False)
    common.add_problem_options(parser, several=())
    g = common.group(parser, "GPUs, links and schedules")
    link = "nvlink, pcie, ib (400 Gb/s), ib-100g, ib-200g, or GB/s in one direction (default: nvlink)"
    g.add_argument("--link", default="nvlink", metavar="LINK", help=link)
    g.add_argument("--gpus-per-node", type=options.whole, metavar="N", help="GPUs joined by --link; needs --network")
    g.add_argument("--network", metavar="LINK", help="link between nodes, as --link")
    g.add_argument("--shared-network", action="store_true", help="one network port a node, not one a GPU")
    g.add_argument("--no-overlap", action="store_true", help="computations wait for the messages of their step")
    names = "ring, vanilla, balanced, zigzag, striped, megatron, rsa (default: all that can run)"
    options.add_list(g, "--schedule", metavar="NAME,...", help=names)
    layers = "layers that keep Q, K, V, O for the backward, in memory (default: 1); the first N of --model's"
    g.add_argument("--layers", type=options.whole, default=1, metavar="N", action=options.One, help=layers)
    parser.add_argument("--steps", action="store_true", help="print the chunk schedules, step by step")
    parser.add_argument("--html", metavar="FILE", help="also write figures there, as one HTML file")
    common.add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from iosim.studies.distributed.face import page
    from iosim.studies.distributed.ring import ring

    settings: dict[str, Any] = {
        "link": args.link, "network": args.network, "gpus_per_node": args.gpus_per_node,
        "shared_network": args.shared_network, "kernel": args.kernel, "schedules": args.schedule,
        "overlap": not args.no_overlap, "progress": progress("schedules"),
    }  # fmt: skip
    model = with_model.model(args)
    if model is not None:
        from iosim.studies.distributed.stack import ring_model

        (given,) = with_model.values(args)
        stack = ring_model(model, given, args.num_gpus, args.gpu, **settings)
        if args.html is not None:
            from iosim.base.errors import InputError

            raise InputError("--html goes with no --model; accepted with it: --format table, json or csv")
        common.emit(stack_text(stack, args), args.out)
        return 0
    found = ring(common.problem(args), args.num_gpus, args.gpu, layers=args.layers, **settings)
    if args.html is not None:
        from iosim.base.files import write_whole
        from iosim.show.html import html

        write_whole(args.html, html(page(found, common.typed("ring"))))
    common.emit(as_text(found, args), args.out)
    return 0


def stack_text(stack: RingStack, args: argparse.Namespace) -> str:
    """A model's results in one of the command's formats."""
    from iosim.studies.distributed.ring import flat

    if args.format == "json":
        result = stack.to_dict(steps=args.steps)
        return common.json_text({"schema": result.pop("schema"), "answer": stack.answer, **result})
    if args.format == "csv":
        return Table.of(
            {"model": stack.model.name, "layer": kind.name, "count": kind.count, **flat(r)}
            for kind, found in stack.rings
            for r in found
        ).csv()
    return stack.to_text()


def as_text(found: Ring, args: argparse.Namespace) -> str:
    """The results in one of the command's formats."""
    from iosim.studies.distributed.face import said
    from iosim.studies.distributed.ring import flat

    if args.format == "json":
        result = found.to_dict(steps=args.steps)
        return common.json_text({"schema": result.pop("schema"), "answer": said(found), **result})
    if args.format == "csv":
        return Table.of(map(flat, found)).csv()
    text = found.to_text()
    if args.steps:
        text += "".join(f"\n{s.to_text()}" for r in found for s in r.schedules)
    return text
