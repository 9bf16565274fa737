"""Problems as they are asked for, on the command line and by keywords in Python alike: several lengths at once,
`causal`, a cached `prefix`, and the mask that other words imply.

Values are named by the problem's fields. Not for how a field is spelled: the command line and `iosim.api` know that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

from iosim.base.errors import InputError
from iosim.base.units import sizes, some
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import BESIDES as BESIDES
from iosim.problem.fields import FIELDS, MAX_TOKENS

OF_MASKS = (
    "mask",
    "window",
    "window_right",
    "mask_block",
    "mask_stride",
    "global_tokens",
    "mask_file",
)
"""The fields of which `mask_of` makes a mask."""


def problems(values: Mapping[str, Any]) -> list[AttentionProblem]:
    """One problem for every number of query tokens asked for. `values`: of fields of the problem, and of `BESIDES`;
    None, and what is left out, is the usual. `seq_q` may be a number, a text such as "512,4k" or "1k:64k:x2", or a list
    of them. Raises InputError: values that make no sense, or two that contradict each other."""
    check_queries(values)
    sizes = {name: FIELDS[name].asked for name in FIELDS} | {
        n: v for n, v in values.items() if v is not None
    }
    prefix, fields = sizes.pop("prefix", None), {n: v for n, v in sizes.items() if n in FIELDS}
    fields |= mask_of(values)
    if fields["seq_lens"] is not None or fields["seq_lens_k"] is not None:
        _check_packed(values)
        return [AttentionProblem(**fields | {"seq_q": 1, "seq_k": None})]
    return [
        AttentionProblem(**fields | {"seq_q": n, "seq_k": _keys(fields["seq_k"], prefix, n)})
        for n in lengths(fields["seq_q"], "seq_q")
    ]


def lengths(value: object, name: str) -> list[Any]:
    """The numbers that a number, a text such as "1k:64k:x2", or a list of them asks for; what they may be is not
    checked. Raises InputError: no numbers."""
    if isinstance(value, str):
        return list(sizes(value, f"`{name}`"))
    if isinstance(value, Sequence) and value and not isinstance(value, bytes):
        return [number for element in value for number in lengths(element, name)]
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise InputError(
            f"`{name}` {value!r} is no length; accepted: whole numbers, or texts such as '512,4k'"
        )
    return [value]


def _keys(keys: int | None, prefix: int | None, queries: Any) -> Any:
    if prefix is None:
        return keys
    if keys is not None:
        why = "both say how many keys there are; give one of them"
        raise InputError(f"`prefix` {prefix} contradicts `seq_k` {keys}: {why}")
    return prefix + queries


def check_queries(values: Mapping[str, Any]) -> None:
    """Refuse key tokens that stand alone: how many queries there are would be the usual number, which nobody named."""
    if values.get("seq_k") is not None and all(
        values.get(name) is None for name in ("seq_q", "seq_lens", "prefix")
    ):
        keys = values["seq_k"]
        text = ",".join(map(str, keys)) if isinstance(keys, list | tuple) else keys
        why = f"`seq_q` 1 (a step of decoding) or another number; `seq_q` {text} alone is a whole prompt"
        raise InputError(
            f"`seq_k` {text} leaves open how many tokens are new; accepted with it: {why}"
        )


def _check_packed(values: Mapping[str, Any]) -> None:
    for name in ("seq_k", "prefix"):
        if values.get(name) is not None:
            raise InputError(
                f"`{name}` {values[name]} contradicts `seq_lens`; accepted with it: `seq_lens_k`"
            )
    if values.get("seq_q") is not None:
        raise InputError(f"`seq_q` {values['seq_q']} contradicts `seq_lens`; give one of them")


def mask_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The problem's mask and its own fields. Raises InputError: two words that each say another mask."""
    mask, causal = values.get("mask"), values.get("causal")
    window = next(
        (values[n] for n in ("window", "window_right") if values.get(n) is not None), None
    )
    if causal and mask not in (None, "causal", "window"):
        raise InputError(f"`causal=True` contradicts `mask` {mask}; give one of them")
    blocks = values.get("mask_file") is not None or values.get("mask_blocks") is not None
    implied = "blocks" if blocks else "window" if window is not None else "none"
    return {n: values.get(n) for n in OF_MASKS} | {
        "mask": "causal" if causal else implied if mask is None else mask
    }


def found_to_fit(tokens: int, step: int = 1) -> str:
    """Tokens that a search in steps of so many found to fit: "4,096 tokens", or "at least 16,777,216 tokens" where it
    ended since no more are taken."""
    ended = MAX_TOKENS - step < tokens <= MAX_TOKENS
    return f"{'at least ' if ended else ''}{some(tokens, 'token')}"


def up_to(tokens: int, step: int = 1) -> str:
    """ "up to 4,096 tokens", or "at least 16,777,216 tokens"."""
    found = found_to_fit(tokens, step)
    return found if found.startswith("at least") else f"up to {found}"
