"""The mathematics of a launch: the Body protocol and the registry (algorithm, launch name) -> body.

A new algorithm may register its bodies in the module that registers its planner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from iosim.readers.execute.place import Place


class ExecutionError(RuntimeError):
    """A launch's description and its mathematics do not fit: a tile used that no access loads, or the reverse."""


class Body:
    """What one work tile computes, hook by hook. One instance a work tile; state lives in its attributes ("on chip").

    An "outer" of q, q,split or k calls begin, pair at each visited pair, end. The combine of splits (outer q, a domain
    with splits) calls `split` once a split before the pairs. "head" calls begin and end around each key block, pair
    inside, and `finish_query` after the last visit of a query block (or once, if there is none).
    "flat" and "qk" call pair alone. The first work tile of all calls `launch` before anything else.
    """

    def launch(self, at: Place) -> None:
        """The launch's first work tile starts: what it stores once a launch is put."""

    def begin(self, at: Place) -> None:
        """The work tile, or under "head" the key block, starts: its own tiles are loaded."""

    def split(self, at: Place) -> None:
        """One split's partial results are loaded."""

    def pair(self, at: Place) -> None:
        """One visited (query block, key block) pair."""

    def finish_query(self, at: Place) -> None:
        """A query block has been visited for the last time."""

    def end(self, at: Place) -> None:
        """The work tile, or under "head" the key block, ends: what it stores once is put."""


BodyFactory = Callable[[], Body]
_BODIES: dict[tuple[str, str], BodyFactory] = {}
_Registered = TypeVar("_Registered", bound=type[Body] | Callable[..., None])


def body(algorithm: str, *launches: str, override: bool = False) -> Callable[[_Registered], _Registered]:
    """Register a `Body` class, or a function of a Place for flat and one-pair launches, for launches of an algorithm.

    Launches numbered at their end (copy0, copy1) share the body of the bare name.

    Raises:
        ValueError: a launch has a body and `override` is False.
    """

    def register(made: _Registered) -> _Registered:
        for launch in launches:
            if (algorithm, launch) in _BODIES and not override:
                raise ValueError(f"launch '{launch}' of algorithm '{algorithm}' has a body; pass override=True")
            _BODIES[algorithm, launch] = made if isinstance(made, type) else _of_function(made)
        return made

    return register


def share_bodies(algorithm: str, other: str) -> None:
    """Give `algorithm` the bodies of all launches of `other`."""
    for (name, launch), made in tuple(_BODIES.items()):
        if name == other:
            _BODIES[algorithm, launch] = made


def _of_function(function: Callable[..., None]) -> BodyFactory:
    class OnePair(Body):
        def pair(self, at: Place) -> None:
            function(at)

    return OnePair


def body_of(algorithm: str, launch: str) -> BodyFactory:
    """The body of a launch.

    Raises:
        ExecutionError: none is registered.
    """
    for name in (launch, launch.rstrip("0123456789")):
        if (algorithm, name) in _BODIES:
            return _BODIES[algorithm, name]
    raise ExecutionError(f"launch '{launch}' of algorithm '{algorithm}' has no body to execute")
