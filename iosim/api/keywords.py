"""Keywords of the public functions: the command line's options in Python's spelling, made of the tables of fields; and
what they say, as requests, problems, settings and names, each value read as the command line reads its text.

An option is the keyword of its name: --seq-len is `seq_len`; `pass`, which Python keeps for itself, is `passes`, as the
field. What else the command line accepts for an option, and the field's own name, are accepted here, too.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from keyword import iskeyword
from numbers import Real
from typing import TYPE_CHECKING, Any, ParamSpec, SupportsIndex, TypeVar

from iosim.base.errors import InputError, alike, out_of_scope, spelled
from iosim.base.fields import MAX_SIZE, About, Kind, default_text, described, fields_of
from iosim.base.schema import one_line
from iosim.problem.asked import lengths as read_lengths
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import BESIDES, FIELDS
from iosim.studies import requests
from iosim.studies.requests import OVERRIDES, OfProblem, Overrides

if TYPE_CHECKING:
    from iosim.studies.models.layers import Layers, Model

    ModelLike = str | os.PathLike[str] | Mapping[str, Any] | Model
    """What a model is given as."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def keyword_of(about: About) -> str:
    bare = about.option is None or about.option.startswith("--no-")
    name = about.name if bare else str(about.option)[2:].replace("-", "_")
    return about.name if iskeyword(name) else name


OF_TILE = ("tile", "warps", "stages", "matrix_unit")
PROBLEM = {keyword_of(about): about for about in FIELDS.values()}
SETTINGS = {keyword_of(about): about for about in OVERRIDES.values()}
SHORT = dict(BESIDES)
_REQUESTS: Mapping[str, Mapping[str, About]] = {
    "predict": requests.AGAINST,
    "predict_code": requests.CODE,
    "explain_code": requests.CODE,
    "kernel_of_code": requests.CODE,
    "compare": {
        **requests.COMPARE,
        "per": requests.CHOICE["per"],
        "price": requests.CHOICE["price"],
    },
    # Three of the tile's settings belong to the study of one tile; the matrix unit, which the
    # ranking needs as well, to both.
    "pick_tiles": {
        name: about for name, about in requests.TILES.items() if name not in OF_TILE[:3]
    },
    "study_tile": {name: requests.TILES[name] for name in OF_TILE},
    "orders": requests.ORDERS,
    "explain": {"l2_start": requests.EXPLAIN["l2_start"]},
    "check_claim": requests.CLAIM,
    "formula": requests.FORMULA,
    "decode": requests.DECODE,
    "latency": requests.LATENCY,
    "ring": requests.RING,
    "model": requests.WHOLE,
    "train_memory": requests.TRAIN,
    "sweep": requests.SWEEP,
}
WITHOUT_PROBLEM = (
    "predict_code",
    "explain_code",
    "kernel_of_code",
    "formula",
    "decode",
    "model",
    "train_memory",
    "sweep",
)
WITH_SETTINGS = ("predict", "explain", "check_claim")
# Later tables win: where a request and a problem have a field of one name (`dtype`), the
# problem's words and limits are shown.
KEYWORDS: Mapping[str, Mapping[str, About]] = {
    function: {keyword_of(about): about for about in fields_of_request.values()}
    | ({} if function in WITHOUT_PROBLEM else PROBLEM | SHORT)
    | (SETTINGS if function in WITH_SETTINGS else {})
    for function, fields_of_request in _REQUESTS.items()
}
"""Function -> its keywords: the fields of what it is asked for, of a problem, and settings over a kernel's choice."""
KEYWORD_OF = {about.name: name for name, about in (*PROBLEM.items(), *SETTINGS.items())} | {
    "profile": "gpu",
    "profiles": "gpu",
    "gpus": "gpu",
    "kernels": "kernel",
    "l2_start": "l2",
    "reserve_bytes": "reserve",
}
"""Name of a field or of a parameter further down -> the keyword that gives it."""


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function with `**options` show each of its KEYWORDS that is no parameter of its own, and lets its errors
    name keywords. One with `**values` takes other keywords, too."""
    signature = inspect.signature(function)
    # The signature that `help` and editors show: the function's own parameters, then a keyword per
    # field of its request in place of the bundle, then the open bundle of `sweep`.
    parameters = [
        p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    others = [p for p in signature.parameters.values() if p.name == "values"]
    taken = {p.name for p in parameters}
    keywords = {
        name: about for name, about in KEYWORDS[function.__name__].items() if name not in taken
    }
    rest = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=about.asked, annotation=annotation(about)
        )
        for name, about in keywords.items()
    ]
    whole_signature = signature.replace(parameters=[*parameters, *rest, *others])
    named = [p.name for p in (*parameters, *rest)]

    @functools.wraps(function)
    def called(*args: P.args, **options: P.kwargs) -> R:
        try:
            # Names are settled first, then number types become texts, and only then are types checked:
            # a refusal names the keyword as the caller wrote it.
            values = _by_keyword(function.__name__, options, named, bool(others))
            values = {name: _plain(value) for name, value in values.items()}
            check_types(dict(zip(named, args, strict=False)) | values, whole_signature, taken)
            return function(*args, **values)
        except InputError as error:  # what is further down names fields
            raise type(error)(spelled(error.marked, _keyword)) from None

    called.__signature__ = whole_signature  # type: ignore[attr-defined]
    called.__doc__ = _documented(function, keywords)
    return called


def _plain(value: Any) -> Any:
    """The name of a number type of PyTorch's or NumPy's, such as torch.bfloat16, and what their numbers, flags and
    arrays hold as Python's own; anything else as it is."""
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
    if any(base.__name__ == "dtype" for base in type(value).__mro__):
        return str(value)
    if not (hasattr(value, "dtype") and hasattr(value, "tolist")):
        return value
    try:
        return value.tolist()
    except (NotImplementedError, RuntimeError):  # a tensor without values
        return value


def _keyword(name: str, value: str | None) -> str:
    keyword = KEYWORD_OF.get(name, name)
    return f"`{keyword}`" if value is None else f"`{keyword}={value}`"


def _by_keyword(
    function: str, options: Mapping[str, Any], named: Sequence[str], open: bool
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in options.items():
        # A field's name is accepted beside the option's: `seq_q` and `seq_len` are one keyword.
        # Where GPUs are counted, `gpus` is their number, as on the command line of a ring.
        counted = f"num_{name}"
        known_name = counted if counted in named else KEYWORD_OF.get(name, name)
        keyword = name if name in named else known_name
        if keyword not in named and open:
            keyword = name
        elif keyword not in named:
            # Nearest spelling among keywords and fields, told as the keyword; before that, whether
            # another function has it, and whether it is a thing that iosim leaves out on purpose.
            known = {n: n for n in named} | {
                other: keyword_of_field
                for other, keyword_of_field in KEYWORD_OF.items()
                if keyword_of_field in named
            }
            near = ", ".join(dict.fromkeys(known[n] for n in alike(name, known)))
            others = ", ".join(
                f"iosim.{other}" for other, has in KEYWORDS.items() if keyword in has
            )
            hint = f"accepted by: {others}" if others else out_of_scope("option", name)
            hint = hint or (f"did you mean {near}?" if near else f"accepted: {', '.join(named)}")
            raise InputError(f"{function}() has no keyword '{name}'; {hint}")
        if keyword in values:
            twice = " and ".join(n for n in options if keyword in (n, KEYWORD_OF.get(n)))
            raise InputError(f"`{keyword}` is given twice, as {twice}; give one of them")
        values[keyword] = value
    return values


def check_types(
    values: Mapping[str, Any], signature: inspect.Signature, parameters: Collection[str]
) -> None:
    """Refuse a value of a type that its keyword does not have, so that what is wrong is told by the keyword's name."""
    for name, value in values.items():
        parameter = signature.parameters.get(name)
        if (
            parameter is None
            or (value is None and name not in parameters)
            or (value is not None and name in READ_LATER)
        ):
            continue
        # Subscripts are dropped: that an element has a wrong type is found where it is read, with
        # the element's number.
        kinds = str(parameter.annotation)
        if not any(_is(value, kind) for kind in re.sub(r"\[.*?\](?=$| )", "", kinds).split(" | ")):
            default = "" if value is not None else f", or without it: {parameter.default!r}"
            raise InputError(
                f"`{name}` {one_line(repr(value), 60)} is no value; accepted: "
                f"{kinds.replace('ModelLike', MODEL_WORDS)}{default}"
            )


MODEL_WORDS = "a name | a path | what a config.json holds | a config of transformers"
READ_LATER = ("problem", "kernel", "gpu", "code", "arg")
"""Keywords whose lists and objects have refusals of their own."""


def _is(value: object, kind: str) -> bool:
    # Types are compared by name: importing torch, NumPy or a profile's class to ask for its type
    # would cost seconds at the start.
    simple: dict[str, Callable[[], bool]] = {
        "None": lambda: value is None,
        "bool": lambda: isinstance(value, bool),
        "int": lambda: isinstance(value, SupportsIndex) and not isinstance(value, bool),
        "float": lambda: isinstance(value, Real) and not isinstance(value, bool),
        "str": lambda: isinstance(value, str | os.PathLike),
        "tuple": lambda: isinstance(value, tuple | list),
        "Sequence": lambda: (
            isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
        ),
        "ModelLike": lambda: (
            isinstance(value, str | os.PathLike | Mapping)
            or is_config(value)
            or _is(value, "Model")
        ),
    }
    name = kind.rpartition(".")[2]
    return (
        simple[kind]()
        if kind in simple
        else any(base.__name__ == name for base in type(value).__mro__)
    )


def is_config(value: object) -> bool:
    """True of a config of transformers, which is known by what it has."""
    return hasattr(value, "model_type") and callable(getattr(value, "to_dict", None))


TYPES = {
    Kind.WHOLE: "int | str",
    Kind.PROBABILITY: "float",
    Kind.FLAG: "bool",
    Kind.WORD: "str",
    Kind.SIDES: "tuple[int, int] | str",
    Kind.LENGTHS: "Sequence[int] | str",
    Kind.FILE: "str",
    Kind.OBJECT: "BlockMask",
    Kind.NUMBER: "float",
    Kind.TEXT: "str | float",
    Kind.NAMES: "str | Sequence[str]",
    Kind.SIZES: "int | str | Sequence[int | str]",
    Kind.NAME: "str",
    Kind.NUMBERS: "Sequence[float]",
}
LISTED = "int | str | Sequence[int | str]"


def annotation(about: About) -> str:
    if about.name == "seq_q":
        return LISTED
    either = f"int | {TYPES[about.kind]}" if about.one_for_both else TYPES[about.kind]
    return f"{either} | None" if about.asked is None else either


def _documented(function: Callable[..., Any], keywords: Mapping[str, About]) -> str:
    text = inspect.cleandoc(function.__doc__ or "")
    rows = "\n".join(textwrap.indent(said(name, about), "    ") for name, about in keywords.items())
    # The bundle's line in the docstring gives way to a line per keyword.
    head, _, tail = text.partition("    **options: ")
    _, _, after = tail.partition("\n")
    return f"{head}{rows}\n{after}"


def said(name: str, about: About) -> str:
    """A keyword's line of a docstring: what it is, what is accepted, the default."""
    default = default_text(about, usual=True)
    any_size = about.kind is Kind.WHOLE and about.low <= 1 and about.high == MAX_SIZE
    accepted = (
        "" if any_size or about.kind is Kind.FLAG or not about.accepted else f" ({about.accepted})"
    )
    return f"{name}: {described(about)}{accepted}{f'; by default {default}' if default else ''}."


OF_PROBLEMS = PROBLEM | SHORT


def read(name: str, about: About, value: Any) -> Any:
    """A keyword's value, a text such as "4k" or "128x64" read as the command line would."""
    if about.kind is Kind.NAMES:
        return names(value, name)
    return about.read(value, f"`{name}`") if isinstance(value, str) and name != "seq_len" else value


def request(of: type[T], options: Mapping[str, Any], **more: Any) -> T:
    """The request that a function's keywords make; `more` are the record's other fields."""
    # A field that the caller did not give keeps the record's default: it is left out, not set
    # to None.
    read_from = {
        name: keyword_of(about) for name, about in fields_of(of).items() if name not in more
    }
    chosen = {name: word for name, word in read_from.items() if options.get(word) is not None}
    return of(
        **{name: read(word, fields_of(of)[name], options[word]) for name, word in chosen.items()},
        **more,
    )


AXES = ("seq_q", "seq_k", "batch")


def values_of(options: Mapping[str, Any]) -> dict[str, Any]:
    chosen = {name: about for name, about in OF_PROBLEMS.items() if name in options}
    read_values = {about.name: read(name, about, options[name]) for name, about in chosen.items()}
    # Lists of lengths within one call become tuples, which records can hash; axes of a
    # comparison stay lists, one call per element.
    return {
        n: tuple(v) if isinstance(v, list) and n not in AXES else v for n, v in read_values.items()
    }


def loaded(model: ModelLike | None) -> Model | None:
    if model is None:
        return None
    from iosim.integrations.models import load_model

    return load_model(model)


def of_problem(
    of: type[T],
    problem: object,
    options: Mapping[str, Any],
    model: ModelLike | None = None,
    **more: Any,
) -> T:
    """A request for the problem or problems that a function was given, or that its keywords or a model say."""
    several: object = [problem] if isinstance(problem, AttentionProblem) else problem
    if problem is not None:
        if model is not None:
            raise InputError(
                "`problem` contradicts `model`, which says the problem of every layer; accepted: one of them"
            )
        for name in (name for name in options if name in OF_PROBLEMS):
            hint = f"accepted: one of them, or problem.with_({OF_PROBLEMS[name].name}=...)"
            raise InputError(
                f"`{name}` {options[name]!r} contradicts `problem`, which says it already; {hint}"
            )
        if not isinstance(several, Sequence) or not all(
            isinstance(item, AttentionProblem) for item in several
        ):
            accepted = "one, or keywords such as heads=32"
            raise InputError(f"`problem` {problem!r} is no AttentionProblem; accepted: {accepted}")
    return request(
        of, options, problems=several, values=values_of(options), model=loaded(model), **more
    )


def calls_of(of: OfProblem) -> list[tuple[Layers | None, AttentionProblem]]:
    """The problems of a function that takes several lengths, of a model those of its layers, which must be alike."""
    from iosim.studies.models.asked import asked_problems

    calls = asked_problems(of)
    # Layers of several kinds (sliding window and full, say) have several problems per length: a
    # table with one row per length would mix them.
    kinds = list(dict.fromkeys(layers.name for layers, _ in calls if layers is not None))
    if len(kinds) > 1 and of.model is not None:
        hint = "accepted: a model whose layers are alike, or a `problem` of iosim.predict(model=...).predictions"
        raise InputError(
            f"`model` '{of.model.name}' has {' and '.join(kinds)} layers, which differ; {hint}"
        )
    return calls


def check_one(of: OfProblem, several: str = "iosim.compare") -> None:
    """Refuses several lengths; `several` is the function that takes them. Raises InputError: there are several."""
    lengths = (
        of.problems
        if of.problems is not None
        else read_lengths(of.values.get("seq_q", 1), "seq_len")
    )
    if len(lengths) != 1:
        accepted = f"one, and {several} takes several"
        raise InputError(
            f"`seq_len` {of.values.get('seq_q')!r} are {len(lengths)} lengths; accepted: {accepted}"
        )


def call_of(
    problem: object,
    options: Mapping[str, Any],
    model: ModelLike | None = None,
    several: str = "iosim.compare",
    **more: Any,
) -> tuple[Layers | None, AttentionProblem]:
    """The one problem of a function, and the layers of a model whose it is."""
    of = of_problem(OfProblem, problem, options, model, **more)
    check_one(of, several)
    (call,) = calls_of(of)
    return call


def overrides_of(
    options: Mapping[str, Any], kernel: object, overrides: Overrides | None = None
) -> Overrides | None:
    settings = {
        name: read(name, SETTINGS[name], v)
        for name, v in options.items()
        if name in SETTINGS and v is not None
    }
    if not settings:
        return overrides
    name = next(iter(settings))
    if overrides is not None:
        raise InputError(f"`{name}` contradicts `overrides`; accepted: one of them")
    if hasattr(kernel, "name"):  # an object, as `names` takes it
        more = "and `kernel` is one of your own; accepted with it: kernel.with_(...)"
        raise InputError(f"`{name}` is a setting over a catalog kernel's choice, {more}")
    return Overrides(**{SETTINGS[name].name: value for name, value in settings.items()})


def names(value: object, keyword: str) -> list[Any]:
    """One or several kernels or GPUs: an object, a text such as "naive,fa2", or a list of them."""
    several: list[Any]
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(value, str):
        several = [name.strip() for name in value.split(",") if name.strip()]
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        several = [name for item in value for name in names(item, keyword)]
    elif hasattr(value, "name"):
        several = [value]
    else:
        raise InputError(
            f"`{keyword}` {value!r} is no name; accepted: names as a list or a text, or an object of one"
        )
    if not several:
        raise InputError(f"`{keyword}` is empty; at least one is needed")
    return several


def single(value: object, keyword: str) -> Any:
    """A single kernel or GPU. Raises InputError: several."""
    several = names(value, keyword)
    if len(several) != 1:
        raise InputError(
            f"`{keyword}` {value!r} are {len(several)}; accepted: one, and iosim.compare takes several"
        )
    return several[0]
