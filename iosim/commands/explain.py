"""`iosim explain`: why a kernel's HBM bytes are what they are, and which change would help most."""

from __future__ import annotations

import argparse

from iosim.base.progress import progress
from iosim.base.records import replace
from iosim.commands import common, options
from iosim.commands.parser import CommandParser
from iosim.show.tables import Table
from iosim.studies.requests import EXPLAIN, ExplainRequest

CHANGES = 15
"""That are tried and replayed at most, alone and in pairs, about."""


def add_options(parser: CommandParser) -> None:
    common.add_gpus(parser)
    common.add_kernels(parser, "default")
    common.add_problem_options(parser, several=common.ALL_SIZES)
    common.add_kernel_options(parser)
    common.add_conditions(parser, "l2_start", "clocks", "launched")
    options.add(parser.group("options"), EXPLAIN, ("time",))
    common.add_output_options(parser, ("table", "json", "md"))


def run(args: argparse.Namespace) -> int:
    from iosim.prediction.predictor import planned
    from iosim.prediction.replays import Replays
    from iosim.studies.explain import answer, as_text, explain
    from iosim.studies.models.prediction import requests_of
    from iosim.studies.trace.trace import check_traceable
    from iosim.studies.trials import MAX_ACCESSES

    common.check_place(args.out)
    asked = common.request(args, ExplainRequest)
    if asked.time:
        return _tell_time(args, asked)
    calls = requests_of(asked)
    for r in calls:
        accesses = check_traceable(planned(r.problem, r.kernel, r.profile, r.overrides))
        tried = accesses <= MAX_ACCESSES
        common.announce_replays(
            f"{r.kernel} on {r.profile}", 2 * accesses + (min(MAX_ACCESSES, CHANGES * accesses) if tried else 0),
            "" if tried else "; no change is tried",
        )  # fmt: skip
    replayed = (replace(r, method="replay").predict(Replays()) for r in calls)
    explanations = [explain(prediction, progress=progress("trying changes")) for prediction in replayed]
    return common.tell(
        args, answer(explanations), json=lambda: {"explanations": [e.to_dict() for e in explanations]},
        text=lambda markdown: "\n".join(as_text(e, markdown=markdown) for e in explanations),
    )  # fmt: skip


def _tell_time(args: argparse.Namespace, asked: ExplainRequest) -> int:
    """Where the time goes: the predictions that `iosim predict` makes, and their launches' times by part."""
    from iosim.base.units import seconds_text
    from iosim.prediction.face import energy_line, line, time_table
    from iosim.prediction.many import predict_many
    from iosim.studies.models.prediction import requests_of

    predictions = list(predict_many(requests_of(asked), progress=progress("predicting")))
    answers = [f"{p.kernel.name} on {p.profile.name} takes {seconds_text(p.time_s)}, bound by {p.bound_by}."
               for p in predictions]  # fmt: skip

    def text(markdown: bool) -> str:
        written = Table.markdown if markdown else Table.text
        return "\n\n".join(f"{line(p)}\n\n{written(time_table(p))}\n\n{energy_line(p)}" for p in predictions) + "\n"

    found = {"predictions": [p.to_dict() for p in predictions]}
    return common.tell(args, " ".join(answers), json=lambda: found, text=text)
