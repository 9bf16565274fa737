"""The mathematics of a launch: `Body`, the registry of bodies by algorithm and launch, and what a body sees.

On-chip values are float64; only what passes memory is rounded. The shipped algorithms' are in `executor.bodies`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from iosim.base.registry import Registry
from iosim.catalog.algorithms import algorithm_of
from iosim.catalog.algorithms.one_loop import LoopAlgorithm
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Launch
from iosim.problem.attention import AttentionProblem

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


class ExecutionError(RuntimeError):
    """A launch's description and its mathematics do not fit: a tile used that no access loads, or the reverse."""


class Place(Protocol):
    """Where a body stands in a launch: the tiles it may use there and the stores it owes there.

    Tiles are [rows, cols]; a row vector's are [rows, 1]; rows past a tensor's end are left out. Key rows that an access
    leaves out because no query of the block needs them are zero.
    """

    launch: Launch
    problem: AttentionProblem
    spot: Any
    """Its `split` is the split of the keys."""
    kernel: Kernel
    q: Indices
    """Rows of the query block, within the domain."""
    keys: Indices
    """Key indices of the key block."""

    @property
    def scale(self) -> float:
        """The softmax scale, 1 / sqrt(head_dim)."""

    def __getitem__(self, tensor: str) -> Array:
        """A tile that has been loaded for this place."""

    def resume(self, tensor: str, initial: float, cols: int = 1) -> Array:
        """A running value [rows, cols] of the query block, or of the key block: the tile loaded, or `initial` where the
        access says that its first load is left out."""

    def put(self, tensor: str, value: Array) -> None:
        """Hand over the value of a store that is due here; one that the access leaves out here is dropped. Raises
        ExecutionError: the launch does not store this tensor here."""

    def writes(self, tensor: str) -> bool:
        """Whether the launch has any write of `tensor`."""

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        """Boolean [query rows, keys] of the problem's mask at this tile, from indices alone."""

    @property
    def distance(self) -> Array:
        """|i + offset - j| of the tile's pairs: what ALiBi's slope multiplies, the diagonal where the mask's is."""

    @property
    def survivors(self) -> Array:
        """[query rows, keys]: 1 where dropout keeps a weight, else 0; from the seed that the call was given."""

    @property
    def dropout_factor(self) -> Array:
        """[query rows, keys]: what a weight is multiplied by under dropout; ones without."""

    @property
    def dropout_factor_again(self) -> Array:
        """`dropout_factor` from the random state that the launch has loaded."""

    @property
    def random_state(self) -> Array:
        """[2, 1]: the seed, and the offset at which the counter starts."""


class Body:
    """What one work tile computes, hook by hook. One instance a work tile; state lives in its attributes ("on chip").

    With `Outer` QUERY, SPLIT or KEY begin is called, pair at each visited pair, end. The combine of splits (QUERY, a
    domain with splits) calls `split` once a split before the pairs. HEAD calls begin and end around each key block,
    pair inside. HEAD and KEY call `finish_query` after the last visit of a query block (or once, if there is none),
    and `split` for every query block as a work tile starts, where it loads or stores something there.
    FLAT and PAIR call pair alone. The first work tile of all calls `launch` before anything else.
    """

    def launch(self, at: Place) -> None:
        """The launch's first work tile starts: what it stores once a launch is put."""

    def begin(self, at: Place) -> None:
        """The work tile, or under `Outer.HEAD` the key block, starts: its own tiles are loaded."""

    def split(self, at: Place) -> None:
        """One split's partial results are loaded; with key blocks outside, a query block before any is walked."""

    def pair(self, at: Place) -> None:
        """One visited (query block, key block) pair."""

    def finish_query(self, at: Place) -> None:
        """A query block has been visited for the last time."""

    def end(self, at: Place) -> None:
        """The work tile, or under `Outer.HEAD` the key block, ends: what it stores once is put."""


BodyFactory = Callable[[], Body]
_BODIES: Registry[tuple[str, str], BodyFactory] = Registry("body")
_Registered = TypeVar("_Registered", bound=type[Body] | Callable[..., None])


def body(
    algorithm: str, *launches: str, override: bool = False
) -> Callable[[_Registered], _Registered]:
    """Register a `Body` class, or a function of a Place for flat and one-pair launches, for launches of an algorithm.

    Launches numbered at their end (copy0, copy1) share the body of the bare name. Raises ValueError: a launch has a
    body and `override` is False.
    """

    def register(decorated: _Registered) -> _Registered:
        for launch in launches:
            body = decorated if isinstance(decorated, type) else _of_function(decorated)
            _BODIES.put((algorithm, launch), body, override)
        return decorated

    return register


def share_bodies(algorithm: str, other: str) -> None:
    for (name, launch), factory in tuple(_BODIES.items()):
        if name == other:
            _BODIES[algorithm, launch] = factory


def _of_function(function: Callable[..., None]) -> BodyFactory:
    class OnePair(Body):
        def pair(self, at: Place) -> None:
            function(at)

    return OnePair


def body_of(algorithm: str, launch: str) -> BodyFactory:
    """The body of a launch. Raises ExecutionError: none is registered."""
    for name in (launch, launch.rstrip("0123456789")):
        if (algorithm, name) in _BODIES:
            return _BODIES[algorithm, name]
    of_class = getattr(algorithm_of(algorithm).planner, "__self__", None)
    if launch == "main" and isinstance(of_class, type) and issubclass(of_class, LoopAlgorithm):
        return type(of_class.__name__, (of_class, Body), {})
    raise ExecutionError(f"launch '{launch}' of algorithm '{algorithm}' has no body to execute")
