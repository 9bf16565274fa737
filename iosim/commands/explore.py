"""`iosim explore`: pages in the browser, of a model on GPUs side by side and of attention replayed as lists and sliders
say.

What a page asks is text, and so is the answer: a server on this machine, and the Python that a page may carry, both
call `answered`.
"""

from __future__ import annotations

import argparse
import json
import shlex
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.fields import whole
from iosim.base.progress import progress
from iosim.base.units import size
from iosim.base.words import DEFAULT
from iosim.catalog.libraries import entry, entry_names, is_choice
from iosim.commands import common, options
from iosim.hardware.profile import list_profiles, load_profile
from iosim.integrations.models import load_model, preset_names
from iosim.integrations.models.load import preset
from iosim.prediction.answer import answer as sentences
from iosim.prediction.answer import why
from iosim.prediction.replays import Replays
from iosim.problem.fields import CACHE_DTYPES, MAX_TOKENS
from iosim.studies.explore.page import attention_page, question_page, write
from iosim.studies.explore.question import (
    PARTS,
    Question,
    checked_rows,
    gpu_rows,
)
from iosim.studies.explore.record import naive, record
from iosim.studies.explore.server import HERE, server
from iosim.studies.explore.site import write_site
from iosim.studies.models.prediction import requests_of
from iosim.studies.models.whole import TYPES
from iosim.studies.requests import QUANTISED_FORMS, ExploreRequest, PredictRequest

Parsed = Callable[[Sequence[str]], argparse.Namespace]
MOST_CONFIG_BYTES = 100_000


def explore(args: argparse.Namespace) -> int:
    computes = args.out is None or args.runtime is not None
    request = common.request(args, ExploreRequest, **(everything(args) if computes else {}))
    check(request)
    if request.out is not None:
        if request.runtime is None:
            place = write(request, progress("GPUs and kernels"))
            told = "open it in a browser"
        else:
            place = write_site(request, question_setup("python"))
            told = "any host can serve the folder, such as `python -m http.server`"
        total = sum(file.stat().st_size for file in place.parent.rglob("*") if file.is_file())
        size = place.stat().st_size if request.runtime is None else total
        common.emit(f"{place}: {size:,} bytes; {told}\n", None)
        return 0

    # The pages ask this process at each change; `answered` reads a call as a command line, hence every option of
    # `iosim predict` works in the page's address.
    pages = {
        "/": question_page(question_setup("server")),
        "/attention.html": attention_page(request, "server"),
    }
    with server(
        request.port, pages, lambda kind, line: answered(kind, line, args.parsed)
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
    if request.runtime is not None and request.out is None:
        raise InputError("`runtime` needs `out`, the folder to write; accepted: both")
    for gpu in request.gpu:
        if not plays(gpu):
            accepted = "GPUs with one L2; for this one iosim predict, orders and trace"
            raise InputError(
                f"`gpu` {gpu}: an L2 a chiplet, where a page plays but one; accepted: {accepted}"
            )
    for kernel in request.kernel:
        is_choice(kernel) or entry(kernel)
    # A property that reads a list refuses a bad one: touching it is the check.
    for values in (request.lengths, request.dims, request.head_counts):
        assert values


def question_setup(answers: str) -> dict[str, Any]:
    """What the page of the question offers: models, GPUs, forms, kernels, and what was checked."""
    return {
        "answers": answers,
        "models": [[name, preset(name)["title"]] for name in preset_names()],
        "gpus": gpu_rows(tuple(list_profiles())),
        "kernels": [DEFAULT, *entry_names()],
        "weights": list(QUANTISED_FORMS),
        "types": list(TYPES),
        "caches": list(CACHE_DTYPES),
        "parts": list(PARTS),
        "checked": checked_rows(),
    }


def answered(kind: str, line: str, parsed: Parsed) -> str | None:
    """JSON for what a page asks: an `answer` to a line of options, as they are `parsed`, or to a `question`; None for
    any other kind."""
    if kind not in ("answer", "question"):
        return None
    answer = answer_line(line, parsed) if kind == "answer" else answer_question(line)
    return json.dumps(answer, allow_nan=False)


def answer_question(text: str) -> dict[str, Any]:
    """A part of the answer to a question, which is JSON with the keys of `Question`, and `part`; `model` is a preset's
    name or what a config.json holds. Or why there is none."""
    try:
        asked = json.loads(text)
        part = PARTS.get(asked.get("part", "")) if isinstance(asked, dict) else None
        if part is None or len(text) > MOST_CONFIG_BYTES:
            raise InputError(f"`part` is none of {', '.join(PARTS)}, or the question is too long")
        return part(_question(asked))
    except InputError as error:
        return {"error": " ".join(options.with_options(error).split())}
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        return {"error": f"this is no question: {error}"}
    except MemoryError:
        return {"error": "the sizes asked for need more memory than there is"}


def _question(asked: Mapping[str, Any]) -> Question:
    config, price = asked.get("config"), asked.get("price")
    name = str(asked.get("model") or "config.json")
    if config is None and name not in preset_names():
        raise InputError(f"`model` '{name}' is not known; accepted: {', '.join(preset_names())}")
    return Question(
        model=load_model(name if config is None else config),
        name=name,
        gpu=load_profile(str(asked["gpu"])).name,
        kernel=str(asked.get("kernel") or DEFAULT),
        weights=asked.get("weights") or None,
        cache_dtype=asked.get("cache") or None,
        asked_dtype=asked.get("dtype") or None,
        context=_count(asked, "context", 2),
        batch=_count(asked, "batch", 1),
        price=None if price is None else float(price),
    )


def _count(asked: Mapping[str, Any], name: str, least: int) -> int:
    return whole(name, size(str(asked[name]), f"`{name}`"), least, MAX_TOKENS)


def answer_line(line: str, parsed: Parsed) -> dict[str, Any]:
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
