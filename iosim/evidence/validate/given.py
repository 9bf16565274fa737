"""What is said of profiled calls, and the checks that a grid agrees with it.

`Given` is what the user says; `fitting`, `width`, `same` pick from it what a launch's grid and name allow, or raise
`Unknown` with the reason. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

Triple = tuple[int, int, int]
Facts = dict[str, str]


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


def need(value: object, option: str) -> str:
    """A value as text; Unknown where it is not said."""
    if value is None:
        raise Unknown(f"needs {option}")
    return str(value)


def needs(stated: Given, *names: str) -> None:
    """All that is missing at once."""
    options = {"batch": "--batch", "heads": "--heads", "seqs": "--seq-len", "head_dims": "--head-dim",
               "dtype": "--dtype", "causal": "--causal or --no-causal"}  # fmt: skip
    missing = [options[n] for n in names if getattr(stated, n) in (None, ())]
    if missing:
        raise Unknown(f"needs {', '.join(missing)}")


def fitting(stated: Given, block: int, tiles: int, whole: bool = False) -> int:
    """The given length whose query blocks are as many as the grid has."""
    if not stated.seqs:
        raise Unknown("needs --seq-len")
    fitting_values = [n for n in stated.seqs if -(-n // block) == tiles and not (whole and n % block)]
    if len(fitting_values) != 1:
        told = ", ".join(map(str, stated.seqs))
        what = "none" if not fitting_values else "more than one"
        raise Unknown(f"{what} of --seq-len {told} makes the {tiles} query blocks of {block} rows of its grid")
    return fitting_values[0]


def width_of(stated: Given, low: int, high: int) -> int:
    """The given head dimension that a kernel built for widths above `low` and up to `high` takes."""
    if not stated.head_dims:
        raise Unknown("needs --head-dim")
    fitting_values = [d for d in stated.head_dims if low < d <= high]
    if len(fitting_values) != 1:
        told = ", ".join(map(str, stated.head_dims))
        raise Unknown(
            f"{'none' if not fitting_values else 'more than one'} of --head-dim {told} fits a kernel built for {high}"
        )
    return fitting_values[0]


def same(name: str, stated: int | None, grid: int) -> int:
    """What the grid has, where what is given does not differ."""
    if stated is not None and stated != grid:
        raise Unknown(f"--{name} {stated} is not the {grid} of its grid")
    return grid


def problem_facts(stated: Given, *, batch: int, heads: int, seq: int, head_dim: int, dtype: str, causal: bool) -> Facts:
    """The columns of a row that say the problem."""
    kv = stated.kv_heads if stated.kv_heads is not None else heads
    if heads % kv:
        raise Unknown(f"--kv-heads {kv} does not divide its {heads} heads")
    window = "" if stated.window is None else str(stated.window)
    return {
        "batch": str(batch), "heads": str(heads), "kv_heads": str(kv), "seq_q": str(seq),
        "seq_k": str(stated.seq_k or seq), "head_dim": str(head_dim), "causal": str(int(causal)), "dtype": dtype,
        "window": window,
    }  # fmt: skip
