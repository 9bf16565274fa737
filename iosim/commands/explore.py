"""`iosim explore`: a page in the browser that replays attention as its lists and sliders say."""

from __future__ import annotations

import argparse
import shlex
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import progress
from iosim.catalog.libraries import entry, entry_names, is_choice
from iosim.commands import common, options
from iosim.hardware.profile import list_profiles, load_profile
from iosim.prediction.answer import answer as sentences
from iosim.prediction.answer import why
from iosim.prediction.replays import Replays
from iosim.studies.explore.page import HERE, page, server, write
from iosim.studies.explore.record import naive, record
from iosim.studies.models.prediction import requests_of
from iosim.studies.requests import ExploreRequest, PredictRequest


def explore(args: argparse.Namespace) -> int:
    request = common.request(
        args, ExploreRequest, **({} if args.out is not None else everything(args))
    )
    check(request)
    if request.out is not None:
        place = write(request, progress("GPUs and kernels"))
        common.emit(f"{place}: {place.stat().st_size:,} bytes; open it in a browser\n", None)
        return 0

    # The page asks this process at each move of a slider; `answer` reads it as a command line,
    # hence every option of `iosim predict` works in the page's address.
    with server(
        request.port, page(request, None), partial(answer_line, parsed=args.parsed)
    ) as served:
        common.emit(f"http://{HERE}:{served.server_port}/ answers until Ctrl-C\n", None)
        served.serve_forever()
    return 0


def everything(args: argparse.Namespace) -> dict[str, list[str]]:
    """Where Python answers, all GPUs and kernels may be chosen, unless some are named."""
    all_names = {
        "gpu": [name for name in list_profiles() if plays(name)],
        "kernel": [*entry_names()],
    }
    return {name: names for name, names in all_names.items() if not common.is_given(args, name)}


def plays(gpu: str) -> bool:
    return len(load_profile(gpu).levels) == 1


def check(request: ExploreRequest) -> None:
    for gpu in request.gpu:
        if not plays(gpu):
            accepted = "GPUs with one L2; for this one iosim predict, orders and trace"
            raise InputError(
                f"`gpu` {gpu}: an L2 a chiplet, where a page plays but one; accepted: {accepted}"
            )
    for kernel in request.kernel:
        is_choice(kernel) or entry(kernel)
    # A property that reads a list refuses a bad one: touching it is the check.
    for size in (request.lengths, request.dims, request.head_counts):
        assert size


def answer_line(line: str, parsed: Callable[[Sequence[str]], argparse.Namespace]) -> dict[str, Any]:
    """What `iosim predict --format json` prints for these options, as they are `parsed`, with the page's record of its
    prediction; or why there is no answer."""
    try:
        words = shlex.split(line)
        if {"-h", "--help"} & {*words}:
            raise InputError("'iosim predict --help' shows what is accepted")
        return _answer(parsed(["predict", *words]))
    except InputError as error:
        return {"error": " ".join(options.with_options(error).split())}
    except SystemExit:  # an option that prints and ends the command, such as -h
        return {"error": "'iosim predict --help' shows what is accepted"}
    except (OSError, ValueError) as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": "the sizes asked for need more memory than there is"}


def _answer(args: argparse.Namespace) -> dict[str, Any]:

    if args.model is not None or args.against is not None:
        raise InputError("--model and --against are not of one call; accepted: the options of one")
    calls = requests_of(common.request(args, PredictRequest))
    if len(calls) > 1:
        raise InputError(
            f"these options ask for {len(calls)} calls; accepted: one GPU, kernel and value of each"
        )
    p = calls[0].predict(Replays())
    # The recording is packed in bytes, which JSON cannot hold: base64.
    facts, packed = record(p)
    streams = [b64encode(stream).decode() for stream in packed]
    more = {"why_text": why(p), "naive": naive(p.problem, p.profile.name), "streams": streams}
    return {
        "schema": 1,
        "answer": sentences([p]),
        "predictions": [p.to_dict()],
        "record": facts | more,
    }
