"""`cached_property` without a lock, as Python 3.12 has it. Python 3.11's holds one for all instances while it computes:
a process that is forked meanwhile waits for ever. Two threads may compute a value twice, and get equal ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(Generic[T]):
        """A value that is computed when it is first asked for, and then stands in the instance."""

        def __init__(self, compute: Callable[[Any], T]) -> None:
            self.compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, owner: type[Any], name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.compute(instance)
            return value
