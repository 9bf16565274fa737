"""Fields of dataclasses that may be left out and hold a value all the same once the object stands."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class Resolved(Generic[T]):
    """The annotation of a field that is given as a T or None, and read as a T: `__post_init__` puts the default in.

    For type checkers alone: at run time such a field is an ordinary attribute.
    """

    @overload
    def __get__(self, instance: None, owner: type[object]) -> Resolved[T]: ...
    @overload
    def __get__(self, instance: object, owner: type[object]) -> T: ...
    def __get__(self, instance: object | None, owner: type[object]) -> Resolved[T] | T:
        raise NotImplementedError

    def __set__(self, instance: object, value: T | None) -> None:
        raise NotImplementedError


UNSET: Any = None
"""The default of a `Resolved` field."""
