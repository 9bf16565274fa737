"""What a study of several GPUs looks like: its text, its table, the plots of its page."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.units import bytes_text, seconds_text, some
from iosim.prediction.estimates import legend_of
from iosim.show.page import Page, Panel
from iosim.show.shown import Part, panels_of
from iosim.show.tables import Table
from iosim.studies.distributed.answer import answer
from iosim.studies.distributed.page import as_page
from iosim.studies.distributed.ring import Ring
from iosim.studies.distributed.study import Result

NOTES = """\
  idle: (GPU, step) slots without work over all slots; idle/P^2: over the slots of the unbalanced schedule
  received: by an average GPU; Nd: in units of N x d, d the width of all query heads; megatron: the whole layer's
  exposed: time beyond the busiest GPU's computation; memory: attention alone, without weights and other activations
"""


def line(ring: Ring) -> str:
    """The GPUs, the length and the methods."""
    methods = ", ".join(r.name for r in ring)
    return f"{ring.num_gpus} x {ring.profile.name}, {some(ring.problem.seq_q, 'token')}: {methods}"


def said(ring: Ring) -> str:
    """The answer in one sentence."""
    return answer(ring.results, f"{ring.num_gpus} x {ring.profile.name}", ring.by_default)


def text(ring: Ring) -> str:
    """As the command line prints it."""
    told = legend_of(r.method for r in ring)
    marks = "" if told is None else f"  times with {told}\n"
    return f"{said(ring)}\n\n{subject(ring)}\n\n{table(ring.results).text()}\n{NOTES}{marks}"


def parts(ring: Ring) -> list[Part]:
    """The answer, what was computed, a row a method, what the columns mean."""
    return [said(ring), subject(ring), table(ring.results), tuple(line.strip() for line in NOTES.splitlines())]


def page(ring: Ring, command: str = "iosim ring") -> Page:
    """The whole page. `command` is the command line that makes it again."""
    return as_page(ring.results, ring.problem, ring.num_gpus, subject(ring), command)


def panels(ring: Ring) -> tuple[Panel, ...]:
    """The plots of the page."""
    return panels_of(page(ring))


def subject(ring: Ring) -> str:
    """What was computed, in one sentence."""
    p, links = ring.problem, ring.links
    nodes = f", nodes of {links.gpus_per_node} joined by {links.network.name}" if links.network else ""
    link = links.link
    return (
        f"{ring.num_gpus} x {ring.profile.name}, {link.name} at {link.bandwidth_bytes_per_s / 1e9:g} GB/s in one "
        f"direction and {1e6 * link.latency_s:.3g} us a message{nodes}; kernel {ring.kernel_name}, {p.line}"
    )


def table(results: Sequence[Result]) -> Table:
    """A row a method."""
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
    )  # fmt: skip
