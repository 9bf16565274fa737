"""`iosim decode`, `latency`, `ring`, `model` and `train-memory`: attention in serving and in training."""

from __future__ import annotations

import argparse

from iosim.base.errors import InputError
from iosim.base.progress import announce, progress
from iosim.commands import common, options
from iosim.show.tables import Table
from iosim.studies import requests

LISTED = "list"
"""In place of a stack's name: all of them are listed."""


def decode(args: argparse.Namespace) -> int:
    from iosim.studies.decode import study

    return common.show(
        args,
        study.run_decoding(common.request(args, requests.DecodeRequest), progress("predicting")),
    )


def latency(args: argparse.Namespace) -> int:
    from iosim.studies.latency import latency as study

    if LISTED not in args.stack:
        announce("predicting")
        return common.show(
            args, study.run_latency(common.request(args, requests.LatencyRequest, problems=None))
        )
    rows = study.stack_rows()
    table = Table.of(
        {k: ", ".join(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows
    )
    answer = f"{len(rows)} stacks are known." if args.format == "json" else None
    return common.tell(
        args, answer, json=lambda: {"stacks": rows}, rows=lambda: table, table=table.text
    )


def ring(args: argparse.Namespace) -> int:
    from iosim.studies.distributed.ring import run_model, run_ring

    request = common.request(args, requests.RingRequest, problems=None)
    if request.model is not None and args.html is not None:
        raise InputError(
            "--html goes with no --model; accepted with it: --format table, json or csv"
        )
    # With a model every kind of layer has a ring, and they add up; without, one call is shown in
    # full.
    play = run_ring if request.model is None else run_model
    return common.show(args, play(request, steps=args.steps, progress=progress("schedules")))


def model(args: argparse.Namespace) -> int:
    from iosim.integrations.models import load_model
    from iosim.studies.models import whole

    if (args.models is None) == (args.model is None):
        raise InputError(
            "NAME is missing, or given twice; accepted: iosim model NAME,... or --model NAME,..."
        )
    names = options.names(args.models or args.model)
    request = common.request(
        args, requests.WholeRequest, models=[load_model(name) for name in names]
    )
    return common.show(args, whole.run_whole(request, progress("predicting")))


def train_memory(args: argparse.Namespace) -> int:
    from iosim.studies.training import prediction

    model = common.loaded(args)
    if model is not None:
        from iosim.integrations.models.load import decoder_of
    request = common.request(
        args, requests.TrainRequest, of_model=None if model is None else decoder_of(model)
    )
    limits = (
        None
        if args.frontier is None
        else prediction.map_of(request, args.frontier, progress("what fits"))
    )
    # The page of a map shows the step it started from, so both are worked out for it.
    if limits is None or args.html:
        training = prediction.run_training(request, args.frontier)
    whole = (
        {"training": [training.to_dict()]}
        if limits is None
        else limits.setting() | {"frontier": limits.to_dict()}
    )
    return common.show(
        args, limits or training, {"schema": 1} | whole, lambda line: training.as_page(limits, line)
    )
