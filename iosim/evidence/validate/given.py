"""What is said of profiled calls, and the checks that a grid agrees with it.

`Given` is what the user says; `fitting`, `width_of`, `same` pick from it what a launch's grid and name allow, or raise
`Unknown` with the reason. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace

Triple = tuple[int, int, int]
Facts = dict[str, str]
MOST_COLUMNS = 65536
OPTIONS = {"batch": "--batch", "heads": "--heads", "seqs": "--seq-len", "head_dims": "--head-dim",
           "dtype": "--dtype", "causal": "--causal or --no-causal"}  # fmt: skip
"""What must be known of a call, by name or grid or by these options."""


@dataclass(frozen=True)
class Given:
    """What the user says of the profiled calls; None, or no length or width, is not said. Of several lengths and head
    dimensions, each launch takes the one that fits its grid and its name."""

    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    seqs: Sequence[int] = ()
    seq_k: int | None = None
    head_dims: Sequence[int] = ()
    dtype: str | None = None
    causal: bool | None = None
    window: int | None = None
    settings: Facts = field(default_factory=dict)
    """Of the project's own kernels: block_q, block_k, stages, order, heavy_first, section, direction, persistent,
    splits."""

    def under(self, closer: Given) -> Given:
        """What `closer` says, and of the rest what this says."""
        said = {f.name: getattr(closer, f.name) for f in fields(self)}
        kept = {name: value for name, value in said.items() if value not in (None, ()) and name != "settings"}
        return replace(self, **kept, settings={**self.settings, **closer.settings})


class Unknown(Exception):
    """A launch that is not matched; the text is the reason."""


@dataclass(frozen=True)
class Call:
    """A recognised launch: `part` is its name in the model's chain; `follows`, those before it in the same call."""

    implementation: str
    facts: Facts
    part: str = "main"
    follows: tuple[str, ...] = ()


def needs(stated: Given, *names: str) -> None:
    """Raises Unknown with all that is missing at once."""
    missing = [option for name, option in OPTIONS.items() if name in names and getattr(stated, name) in (None, ())]
    if missing:
        raise Unknown(f"needs {', '.join(missing)}")


def only(values: Sequence[int], fits: Callable[[int], bool], option: str, why: str) -> int:
    """The one of the values that fits."""
    if not values:
        raise Unknown(f"needs {option}")
    good = [value for value in values if fits(value)]
    if len(good) != 1:
        told = ", ".join(map(str, values))
        raise Unknown(f"{'more than one' if good else 'none'} of {option} {told} {why}")
    return good[0]


def fitting(stated: Given, block: int, tiles: int, whole: bool = False) -> int:
    """The given length whose query blocks are as many as the grid has."""
    why = f"makes the {tiles} query blocks of {block} rows of its grid"
    return only(stated.seqs, lambda n: -(-n // block) == tiles and not (whole and n % block), "--seq-len", why)


def width_of(stated: Given, low: int, high: int) -> int:
    """The given head dimension that a kernel built for widths above `low` and up to `high` takes."""
    return only(stated.head_dims, lambda d: low < d <= high, "--head-dim", f"fits a kernel built for {high}")


def same(name: str, stated: int | None, grid: int) -> int:
    """What the grid has, where what is given does not differ."""
    if stated is not None and stated != grid:
        raise Unknown(f"--{name} {stated} is not the {grid} of its grid")
    return grid


def facts_of(stated: Given) -> Facts:
    """The columns of a row that say the problem, all of which are known by now; Unknown where one is not."""
    needs(stated, *OPTIONS)
    if len(stated.seqs) != 1:
        raise Unknown("its grid does not tell which of several lengths it has; give one --seq-len")
    seq, heads, head_dim = stated.seqs[0], stated.heads or 0, width_of(stated, 0, MOST_COLUMNS)
    kv = stated.kv_heads if stated.kv_heads is not None else heads
    if heads % kv:
        raise Unknown(f"--kv-heads {kv} does not divide its {heads} heads")
    return {
        "batch": str(stated.batch), "heads": str(heads), "kv_heads": str(kv), "seq_q": str(seq),
        "seq_k": str(stated.seq_k or seq), "head_dim": str(head_dim), "causal": str(int(bool(stated.causal))),
        "dtype": str(stated.dtype), "window": "" if stated.window is None else str(stated.window),
    }  # fmt: skip
