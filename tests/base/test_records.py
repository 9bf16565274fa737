"""Records are dataclasses in all that a caller sees; each is written twice here, once by the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import cached_property
from typing import Any

import pytest

from iosim.base import records


def made(dataclass: Callable[..., Any], suffix: str) -> dict[str, Any]:
    """Classes with every kind of field, by one way of making them; named alike, and found in this module to pickle."""

    @dataclass(frozen=True)
    class Plain:
        a: int
        b: str = "b"
        c: list[int] = dataclasses.field(default_factory=list, compare=False)
        d: float = dataclasses.field(default=0.5, repr=False)
        e: int = dataclasses.field(init=False, hash=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "e", self.a + 1)

        @cached_property
        def doubled(self) -> int:
            return 2 * self.a

    @dataclass(frozen=True, kw_only=True)
    class Child(Plain):
        f: int
        b: str = "child"

    @dataclass
    class Open:
        a: int = 1

    @dataclass(frozen=True)
    class Empty:
        pass

    @dataclass(frozen=True, eq=False, repr=False)
    class Same:
        a: int

    @dataclass(frozen=True)
    class Own:
        """Its own methods."""

        a: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    class Loose(Plain):
        """No dataclass itself."""

    classes = {kind.__name__: kind for kind in (Plain, Child, Open, Empty, Same, Own, Loose)}
    for name, kind in classes.items():
        kind.__qualname__ = name + suffix
        setattr(sys.modules[__name__], name + suffix, kind)
    return classes


OURS = made(records.dataclass, "Ours")
THEIRS = made(dataclasses.dataclass, "Theirs")


def outcome(act: Callable[[], Any]) -> str:
    """What an act gives or raises, as a text that does not tell the two ways apart."""
    try:
        text = repr(act())
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    for words in ("Ours", "Theirs", "made.<locals>."):
        text = text.replace(words, "")
    return text.split(" object at ")[0]


ACTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "repr": lambda k: [
        k["Plain"](1),
        k["Child"](2, f=3),
        k["Open"](),
        k["Empty"](),
        k["Own"](1),
        k["Loose"](4),
    ],
    "no repr": lambda k: k["Same"](1),
    "equal": lambda k: [
        k["Plain"](1) == k["Plain"](1, c=[2]),
        k["Plain"](1) == k["Plain"](2),
        k["Open"]() == 1,
    ],
    "kinds differ": lambda k: [
        k["Plain"](1) == k["Loose"](1),
        k["Empty"]() == k["Empty"](),
        k["Own"](1) == 3,
    ],
    "by identity": lambda k: k["Same"](1) == k["Same"](1),
    "hash": lambda k: [
        hash(k["Plain"](1)),
        hash(k["Child"](1, f=2)),
        hash(k["Empty"]()),
        hash(k["Own"](1)),
    ],
    "no hash": lambda k: hash(k["Open"]()),
    "set": lambda k: setattr(k["Plain"](1), "a", 2),
    "set what is no field": lambda k: setattr(k["Plain"](1), "z", 2),
    "delete": lambda k: delattr(k["Plain"](1), "a"),
    "set a field of a subclass": lambda k: setattr(k["Loose"](1), "a", 2),
    "set of an open one": lambda k: (record := k["Open"](), setattr(record, "a", 2), record)[-1],
    "cached": lambda k: k["Plain"](4).doubled,
    "too few": lambda k: k["Plain"](),
    "too many": lambda k: k["Child"](1, "b", [], 0.5, 3),
    "unknown": lambda k: k["Plain"](1, g=1),
    "lists of their own": lambda k: k["Plain"](1).c is k["Plain"](1).c,
    "fields": lambda k: [
        (f.name, f.type, f.default, f.kw_only) for f in dataclasses.fields(k["Child"])
    ],
    "replace": lambda k: dataclasses.replace(k["Child"](1, f=2), b="new"),
    "asdict": lambda k: dataclasses.asdict(k["Child"](1, f=2)),
    "pickle": lambda k: pickle.loads(pickle.dumps(k["Child"](1, f=2))),
    "copy": lambda k: copy.deepcopy(k["Plain"](1, c=[1])),
    "signature": lambda k: [
        str(inspect.signature(kind)).replace("<factory>", "<>") for kind in (k["Open"], k["Same"])
    ],
    "names of arguments": lambda k: [str(p) for p in inspect.signature(k["Plain"]).parameters],
    "match": lambda k: k["Child"].__match_args__,
}


@pytest.mark.parametrize("action", ACTS)
def test_a_record_does_what_a_dataclass_does(action: str) -> None:
    assert outcome(lambda: ACTS[action](OURS)) == outcome(lambda: ACTS[action](THEIRS))


@pytest.mark.parametrize("outer", [records.dataclass, dataclasses.dataclass])
@pytest.mark.parametrize("inner", [records.dataclass, dataclasses.dataclass])
def test_either_kind_inherits_from_the_other(
    outer: Callable[..., Any], inner: Callable[..., Any]
) -> None:
    @outer(frozen=True)
    class Base:
        a: int = 1

    @inner(frozen=True)
    class Child(Base):
        b: int = 2

    child = Child(b=3)
    assert (child.a, child.b, child == Child(1, 3), hash(child) == hash(Child(1, 3))) == (
        1,
        3,
        True,
        True,
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        child.b = 4  # type: ignore[misc]
    assert Base(2) != Base()


def test_methods_are_compiled_when_they_are_looked_up() -> None:
    class Late:
        a: int
        b: int = 2

    kind = records.dataclass(frozen=True)(Late)
    assert not inspect.isfunction(vars(kind)["__init__"])
    assert (kind(1).a, kind(a=1).b) == (1, 2)
    assert inspect.isfunction(vars(kind)["__init__"])


def test_values_under_keys_are_of_plain_types() -> None:
    """An enum is its word and no enum any more, at every depth; a tuple is a list."""

    class Word(StrEnum):
        LONG = "long"

    class Told:
        def to_dict(self) -> dict[str, int]:
            return {"n": 1}

    given = records.plain(word=Word.LONG, many=(Word.LONG, (Word.LONG, 2)), told=(Told(),), n=None)
    assert given == {"word": "long", "many": ["long", ["long", 2]], "told": [{"n": 1}], "n": None}
    assert type(given["word"]) is type(given["many"][0]) is type(given["many"][1][0]) is str


def test_the_package_writes_records() -> None:
    """A dataclass of the standard library takes half a millisecond of every command that loads its module."""
    from scripts import ROOT

    files = [
        path
        for path in (ROOT / "iosim").rglob("*.py")
        if "dataclasses import" in path.read_text("utf-8")
    ]
    assert [path.name for path in files] == ["records.py"]
