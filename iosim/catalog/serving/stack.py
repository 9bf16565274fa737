"""Stacks as data (`stacks.toml`): the kernel by GPU, pages, the write to the cache, and what else a call launches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError, unknown_name
from iosim.base.records import dataclass
from iosim.base.schema import Flag, ListOf, Real, Spec, Table, Text, Whole, read_toml, refuse
from iosim.catalog.libraries import entry_names
from iosim.catalog.libraries.varlen import combines_nothing
from iosim.hardware.profile import HardwareProfile, cc_text
from iosim.kernel.kernel import Kernel
from iosim.problem.attention import AttentionProblem

FILE = Path(__file__).with_name("stacks.toml")
WHEN = ("always", "packed", "packed apart", "prefill", "narrow cache", "bound without splits")
MOVES = ("nothing", "output", "query", "new keys")

NEW_BYTES = 2
"""Bytes of a value of the new tokens, as the model computes it."""


@dataclass(frozen=True)
class Extra:
    """A launch that a call makes beside the attention, its combine and the write to the cache."""

    name: str
    when: str
    """always; packed: one query token whose group's rows share a tile; packed apart: and their order in memory changes,
    which it does with several sequences and key/value heads; prefill: several query tokens; narrow cache: of
    a narrower type than the new tokens; bound without splits: where the host allows splits and none are made."""
    moves: str
    """nothing: a few bytes; output: O is read and written; query, new keys: Q, or the new tokens' K or V, are read and
    written in the cache's type."""
    source: str
    kernel: str | None = None
    """The kernel that it goes with; None for all."""

    def is_launched(
        self, problem: AttentionProblem, kernel: Kernel, profile: HardwareProfile
    ) -> bool:
        if self.kernel not in (None, kernel.name):
            return False
        # Conditions by name (`when`), as stacks.toml states them.
        if self.when.startswith("packed"):
            packed = problem.seq_q == 1 and problem.group > 1 and kernel.packs_group
            return packed and (self.when == "packed" or reorders(problem))
        if self.when == "prefill":
            return problem.longest_q > 1
        if self.when == "narrow cache":
            return problem.cache_type.bytes < NEW_BYTES
        return self.when == "always" or combines_nothing(
            kernel, problem, int(profile.need("sm_count"))
        )

    def reorders(self, problem: AttentionProblem) -> bool:
        """True where it copies rows to other places, value by value."""
        return self.when.startswith("packed") and reorders(problem)

    def bytes_moved(self, problem: AttentionProblem) -> int:
        tokens = problem.batch * problem.seq_q
        if self.moves == "output":
            return 2 * tokens * problem.heads * problem.head_dim_v * problem.output_type.bytes
        heads = {"nothing": 0, "query": problem.heads, "new keys": problem.kv_heads}[self.moves]
        return tokens * heads * problem.head_dim * (NEW_BYTES + problem.cache_type.bytes)


@dataclass(frozen=True)
class Assumption:
    """A sentence on what a call's time rests on, and the calls of which it is true."""

    text: str
    when: str
    """decode: one query token per sequence; prefill: several."""
    kernel: str | None = None
    """The kernel that it goes with; None for all."""

    def holds(self, problem: AttentionProblem, kernel: Kernel) -> bool:
        return self.kernel in (None, kernel.name) and (self.when == "decode") == (
            problem.longest_q == 1
        )


def reorders(problem: AttentionProblem) -> bool:
    """True where rows of heads lie in another order where a group's are rows of one key/value head."""
    return problem.sequence_count > 1 and problem.kv_heads > 1


@dataclass(frozen=True)
class Stack:
    name: str
    title: str
    version: str
    source: str
    page_size: int
    append_kv: bool
    """True where a call first writes the new tokens' K and V."""
    call_gap_s: float
    """Seconds between two calls that no launch explains; fitted."""
    assumes: tuple[str, ...]
    """What the time of every call rests on, a sentence each."""
    assumes_where: tuple[Assumption, ...]
    """What the time of some calls rests on."""
    kernels: tuple[tuple[str, tuple[int, ...]], ...]
    """(kernel, compute capabilities), the first that has the GPU's."""
    extras: tuple[Extra, ...]

    def assumed_of(self, problem: AttentionProblem, kernel: Kernel) -> tuple[str, ...]:
        """What the time of one call rests on, a sentence each."""
        return (
            *self.assumes,
            *(
                assumption.text
                for assumption in self.assumes_where
                if assumption.holds(problem, kernel)
            ),
        )

    def kernel(self, profile: HardwareProfile) -> str:
        """The kernel that it runs on a GPU. Raises InputError: none there."""
        # The first kernel of the stack's list that knows the GPU's compute capability.
        for name, ccs in self.kernels:
            if profile.cc in ccs:
                return name
        known = sorted({cc for _, ccs in self.kernels for cc in ccs})
        more = f"cc {cc_text(profile.cc)}; accepted: GPUs of cc {', '.join(f'{cc / 10:.1f}' for cc in known)}"
        raise InputError(f"`stack` {self.name}: no kernel of it is known on {profile.name}, {more}")


_EXTRA: Mapping[str, Spec] = {
    "name": Text(),
    "when": Text(WHEN),
    "moves": Text(MOVES),
    "source": Text(),
    "kernel": Text(entry_names),
}
_ASSUMPTION: Mapping[str, Spec] = {
    "text": Text(),
    "when": Text(("decode", "prefill")),
    "kernel": Text(entry_names),
}
_KERNEL: Mapping[str, Spec] = {
    "kernel": Text(entry_names),
    "cc": ListOf(Whole(70, 130), ascending=True),
}
_STACK: Mapping[str, Spec] = {
    "name": Text(pattern="[a-z0-9][a-z0-9-]*"),
    "title": Text(),
    "version": Text(),
    "source": Text(),
    "page_size": Whole(1, 1 << 16),
    "append_kv": Flag(),
    "call_gap_s": Real(0, 1e-3),
    "assumes": ListOf(Text(), least=0),
    "assumes_where": ListOf(Table(_ASSUMPTION, required=("text", "when")), least=0),
    "kernels": ListOf(Table(_KERNEL, required=tuple(_KERNEL))),
    "extra": ListOf(Table(_EXTRA, required=("name", "when", "moves", "source")), least=0),
}
_OPTIONAL = {"extra", "assumes_where"}
_FILE = Table(
    {
        "schema": Whole(1, 1),
        "stack": ListOf(Table(_STACK, required=tuple(_STACK.keys() - _OPTIONAL))),
    },
    required=("schema", "stack"),
)


@cache
def _stacks() -> dict[str, Stack]:
    data = read_toml(FILE, "stacks")
    refuse(list(_FILE.problems(data)), FILE.name)
    return {table["name"]: _stack(table) for table in data["stack"]}


def _stack(data: dict[str, Any]) -> Stack:
    kernels = tuple((table["kernel"], tuple(table["cc"])) for table in data["kernels"])
    extras = tuple(Extra(**table) for table in data.get("extra", ()))
    where = tuple(Assumption(**table) for table in data.get("assumes_where", ()))
    rest = {
        key: value for key, value in data.items() if key not in ("kernels", "assumes", *_OPTIONAL)
    }
    return Stack(
        **rest, assumes=tuple(data["assumes"]), assumes_where=where, kernels=kernels, extras=extras
    )


def stack_names() -> tuple[str, ...]:
    return tuple(_stacks())


def read_stack(name: str) -> Stack:
    if name not in _stacks():
        raise unknown_name("`stack`", name, stack_names())
    return _stacks()[name]


LIBRARIES = ("fa2", "fa3")


def split_rules() -> tuple[str, ...]:
    return (*LIBRARIES, *stack_names())


def kernel_by_rule(
    rule: str, profile: HardwareProfile, page_size: int | None
) -> tuple[str, int | None]:
    """The catalog's kernel that splits by this rule on a GPU, and the tokens of a page: a stack has pages always.
    Raises InputError: no such rule, or a stack that has no kernel there."""
    if rule in LIBRARIES:
        return rule, page_size
    if rule not in stack_names():
        raise unknown_name("`split_rule`", rule, split_rules())
    stack = read_stack(rule)
    return stack.kernel(profile), stack.page_size if page_size is None else page_size
