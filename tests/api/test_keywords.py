"""What a keyword's value is taken for: types are known by name, and numbers of NumPy and PyTorch are Python's own."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iosim.api.keywords import _is, _plain, is_config

Pair = namedtuple("Pair", "first second")


class dtype:
    def __str__(self) -> str:
        return "torch.bfloat16"


class WithoutValues:
    """A tensor on the meta device."""

    dtype = "fp32"

    def tolist(self) -> Any:
        raise NotImplementedError


EMPTY = WithoutValues()
NO_ARRAYS = (SimpleNamespace(dtype="fp32"), SimpleNamespace(tolist=list))


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (3, 3),
        ("fp16", "fp16"),
        (np.int64(3), 3),
        (np.array([1, 2]), [1, 2]),
        ([np.int64(3), "a"], [3, "a"]),
        ((np.bool_(True), [np.float32(0.5)]), (True, [0.5])),
        (Pair(np.int64(1), 2), Pair(np.int64(1), 2)),  # a kind of its own is left as it is
        (dtype(), "torch.bfloat16"),
        (np.dtype("float16"), "float16"),
        (EMPTY, EMPTY),
        *((value, value) for value in NO_ARRAYS),
    ],
)
def test_numbers_of_others_are_pythons_own(value: Any, wanted: Any) -> None:
    plain = _plain(value)
    assert plain == wanted
    assert type(plain) is type(wanted)


def test_a_type_that_names_no_number_is_left() -> None:
    assert _plain(int) is int


VALUES: dict[str, Any] = {
    "None": None,
    "bool": True,
    "int": 4,
    "float": 0.5,
    "str": "fa2",
    "tuple": (1, 2),
    "list": [1, 2],
    "set": {1, 2},
    "Mapping": {"model_type": "llama"},
    "path": Path("config.json"),
    "config": SimpleNamespace(model_type="llama", to_dict=dict),
    "bytes": b"ab",
}
TAKEN = {
    "None": {"None"},
    "bool": {"bool"},
    "int": {"int"},
    "float": {"int", "float"},
    "str": {"str", "path"},
    "tuple": {"tuple", "list"},
    "Sequence": {"tuple", "list", "set"},
    "ModelLike": {"str", "path", "Mapping", "config"},
}
"""Of each kind of keyword the values above that it takes."""


@pytest.mark.parametrize("kind", TAKEN)
def test_each_kind_takes_its_own(kind: str) -> None:
    assert {name for name, value in VALUES.items() if _is(value, kind)} == TAKEN[kind]


def test_classes_are_known_by_their_names() -> None:
    assert _is(Pair(1, 2), "somewhere.Pair")
    assert not _is(Pair(1, 2), "somewhere.Triple")


def test_a_config_has_a_type_and_a_dictionary() -> None:
    assert is_config(VALUES["config"])
    assert not is_config(SimpleNamespace(model_type="llama"))
    assert not is_config(SimpleNamespace(model_type="llama", to_dict={}))
    assert not is_config(SimpleNamespace(to_dict=dict))
