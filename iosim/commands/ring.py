"""`iosim ring`: attention over several GPUs: chunk schedules, idle time, bytes on the links, time and memory."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from iosim.base.progress import progress
from iosim.commands import common, options
from iosim.commands.parser import COMMON
from iosim.show.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iosim.problem.attention import AttentionProblem
    from iosim.studies.distributed.links import Cluster
    from iosim.studies.distributed.study import Result


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "ring", help="attention over several GPUs: chunk schedules, idle time, link bytes, time and memory"
    )
    common.add_gpu(parser, of_old=("--profile", "--profiles"))
    number = common.group(parser, COMMON)
    number.add_argument("--num-gpus", type=options.whole, default=8, metavar="P", action=options.One,
                        help="number of GPUs (default: 8)")  # fmt: skip
    number.add_argument("--gpus", action=options.Gone, dest="gone", instead="--num-gpus N, and --gpu NAME")
    common.add_kernel(parser, "fa2", "kernel of a pair of chunks")
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
    layers = "layers that keep Q, K, V, O for the backward, in memory (default: 1)"
    g.add_argument("--layers", type=options.whole, default=1, metavar="N", help=layers)
    parser.add_argument("--steps", action="store_true", help="print the chunk schedules, step by step")
    parser.add_argument("--html", metavar="FILE", help="also write figures there, as one HTML file")
    common.add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from iosim.hardware.profile import load_profile
    from iosim.studies.distributed import cluster, study

    problem = common.problem(args)
    profile = load_profile(args.gpu)
    args.gpu = profile.name
    links = cluster(profile, args.link, args.network, args.gpus_per_node, shared_network=args.shared_network)
    results = study(
        problem, args.num_gpus, profile, links, kernel=args.kernel, names=args.schedule, overlap=not args.no_overlap,
        layers=args.layers, progress=progress("schedules"),
    )  # fmt: skip
    if args.html is not None:
        from iosim.base.files import write_whole
        from iosim.show.html import html
        from iosim.studies.distributed.page import as_page

        page = as_page(results, problem, args.num_gpus, subject(args, problem, links), common.typed("ring"))
        write_whole(args.html, html(page))
    common.emit(as_text(results, args, problem, links), args.out)
    return 0


def subject(args: argparse.Namespace, p: AttentionProblem, links: Cluster) -> str:
    """What was computed, in one sentence."""
    nodes = f", nodes of {links.gpus_per_node} joined by {links.network.name}" if links.network else ""
    kv = "" if p.group == 1 else f" ({p.kv_heads} key/value)"
    link = links.link
    return (f"{args.num_gpus} x {args.gpu}, {link.name} at {link.bandwidth_bytes_per_s / 1e9:g} GB/s in one direction "
            f"and {1e6 * link.latency_s:.3g} us a message{nodes}; kernel {args.kernel}, batch {p.batch}, {p.heads} "
            f"heads{kv}, {p.seq_q:,} tokens, head_dim {p.head_dim}, {p.dtype}, mask {p.mask}, {p.passes}")  # fmt: skip


def as_text(results: Sequence[Result], args: argparse.Namespace, problem: AttentionProblem, links: Cluster) -> str:
    """The results in one of the command's formats."""
    from iosim.studies.distributed.answer import answer

    said = answer(results, f"{args.num_gpus} x {args.gpu}")
    if args.format == "json":
        ports = {"link": links.link, "network": links.network}
        return common.json_text({
            "schema": 1, "answer": said, "problem": problem.to_dict(), "gpus": args.num_gpus, "profile": args.gpu,
            "kernel": args.kernel,
            **{name: None if p is None else {"name": p.name, "bandwidth_bytes_per_s": p.bandwidth_bytes_per_s,
                                             "latency_s": p.latency_s, "source": p.source}
               for name, p in ports.items()},
            "gpus_per_node": links.gpus_per_node, "shared_network": links.shared_network,
            "overlap": not args.no_overlap,
            "results": [r.to_dict() | {"schedules": [s.to_dict() for s in r.schedules] if args.steps else None}
                        for r in results],
        })  # fmt: skip
    if args.format == "csv":
        return Table.of(_flat(r) for r in results).csv()
    text = f"{said}\n\n{subject(args, problem, links)}\n\n{_table(results)}\n{NOTES}"
    if args.steps:
        text += "".join(f"\n{s.to_text()}" for r in results for s in r.schedules)
    return text


NOTES = """\
  idle: (GPU, step) slots without work over all slots; idle/P^2: over the slots of the unbalanced schedule
  received: by an average GPU; Nd: in units of N x d, d the width of all query heads; megatron: the whole layer's
  exposed: time beyond the busiest GPU's computation; memory: attention alone, without weights and other activations
"""


def _flat(r: Result) -> dict[str, Any]:
    d = r.to_dict()
    idle = d.pop("idle") or {"slots": None, "of_unbalanced": None, "work": None}
    return {**{k: v for k, v in d.items() if k != "title"}, **{f"idle_{k}": v for k, v in idle.items()}}


def _table(results: Sequence[Result]) -> str:
    from iosim.base.units import bytes_text, seconds_text

    return Table.of(
        {
            "method": r.name, "steps": r.steps, "idle": str(r.idle.slots) if r.idle else None,
            "idle/P^2": str(r.idle.of_unbalanced) if r.idle else None,
            "received": bytes_text(float(r.received_bytes)), "Nd": f"{r.received_nd:.4g}",
            "computing": seconds_text(r.compute_s), "exposed": seconds_text(r.exposed_s),
            "time": seconds_text(r.seconds), "speed-up": f"{r.speedup:.4g}", "memory": bytes_text(r.memory_bytes),
            "longest": None if r.longest_sequence is None else f"{r.longest_sequence:,}",
        }
        for r in results
    ).text()  # fmt: skip
