"""What the linear relatives of attention share: a state a head in place of keys and values, and chunks of tokens.

A head's state is [head_dim, head_dim_v] numbers; each token changes it, and its output is read from it. Prefill goes by
chunks: launches that treat all chunks side by side, and one that walks a sequence's chunks one after the other and
writes the state before each. A step of decoding reads the state, changes it and writes it back.

The problem's `heads` are those of V, of O and of the state; Q and K have `kv_heads`, each for a group of them. `seq_q`
tokens are new; with more keys than these there is a state before the first of them.

NB: launches beside the walk are passes over rows: what overlaps inside them is not told apart.
"""

from __future__ import annotations

from collections.abc import Iterable

from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.catalog.algorithms.common import load, row_pass, store
from iosim.catalog.algorithms.registry import options_of
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import (
    Access,
    Chain,
    Domain,
    Launch,
    Outer,
    Per,
    Resources,
    Role,
    Rows,
    Tensor,
)
from iosim.kernel.options import AlgorithmOptions, number
from iosim.kernel.residency import loop_registers
from iosim.kernel.work import Dependent, Work
from iosim.problem.attention import AttentionProblem

STATE = "state_before"
"""The tensor that stands in place of the cache."""
STATE_BYTES = 4
GATE_BYTES = 4
"""Sums of gates and states between calls are fp32."""
MOST_REGISTERS = 255
"""Registers of a thread at most, on every GPU that runs these kernels."""
STEP_LOADS, STEP_SUMS = 2, 3
"""Loads of a step of decoding that wait for one another (where its state lies, what it reads), and sums over a state's
rows or a key's columns, one behind the other, for each token: lengths of Q and K, what the state holds for the key, and
the output."""
Moved = Iterable[str | Access]
"""What a launch reads, or writes: a name stands for a chunk's rows of the tensor."""
Kept = tuple[int, int]
"""fp32 numbers that a CTA keeps, and numbers of the inputs that it stages in shared memory, by the kernel's source."""
IDLE = Work()
ROWS = {Per.QUERY: Rows.QUERY, Per.PAIR: Rows.KEY}
"""A chunk's tokens stand on the query axis, or on the key axis of the launch that walks them."""


@dataclass(frozen=True)
class StateOptions(AlgorithmOptions):
    """`step_tokens`: so many new tokens are a step of decoding, one launch; more go by chunks. `output_columns`: of V
    that a CTA of the output launch takes; `step_columns`: the same of a step. `reads_state`: whether a prefill reads a
    state; None: where keys come before its queries. `writes_state`: whether it writes the last one."""

    step_tokens: int = number(1, 0)
    output_columns: int = number(64, 1)
    step_columns: int = number(32, 1)
    reads_state: bool | None = None
    writes_state: bool = True


def check(problem: AttentionProblem, kernel: Kernel) -> None:
    if problem.backward:
        raise InputError(
            f"`passes` {problem.passes}: kernel '{kernel.name}' has no backward here; accepted: fwd"
        )
    if problem.dropout:
        raise InputError(
            f"`dropout` {problem.dropout} is not possible with kernel '{kernel.name}': it has none"
        )
    # A token changes the state of all after it: causal by nature. One query token has no order.
    behind = problem.mask == "causal" and problem.offset in (None, problem.seq_k - problem.seq_q)
    if not behind and not (problem.mask == "none" and problem.seq_q == 1):
        reason = f"in kernel '{kernel.name}' a token changes the state of those after it; accepted: causal, no offset"
        raise InputError(f"`mask` {problem.mask}: {reason}")
    if problem.seq_q > problem.seq_k:
        reason = (
            f"new tokens are keys, too, in kernel '{kernel.name}'; accepted: up to {problem.seq_k}"
        )
        raise InputError(f"`seq_q` {problem.seq_q} with {problem.seq_k} keys: {reason}")


class StateChain:
    """Collects the tensors and launches of a call, with `chunk` tokens a chunk."""

    options: StateOptions

    def __init__(self, problem: AttentionProblem, kernel: Kernel, kind: type[StateOptions]) -> None:
        check(problem, kernel)
        self.problem, self.kernel = problem, kernel
        self.chunk = kernel.tile.block_k
        self.chunks = -(-problem.seq_q // self.chunk)
        self.options = options_of(kernel, kind)
        self.held: dict[str, Tensor] = {}
        self.launches: list[Launch] = []

    def rows(
        self,
        name: str,
        cols: int,
        role: Role = Role.TEMP,
        *,
        size: int | None = None,
        keys: bool = False,
        apart: bool = True,
    ) -> str:
        """A tensor with a row a token and head (of Q and K where `keys`), in the inputs' type or of `size` bytes; heads
        lie between tokens and columns where the problem's layout says so, unless they are not `apart`."""
        p, heads = self.problem, self.problem.kv_heads if keys else self.problem.heads
        width, kind = (p.input_type.bytes, p.input_type.name) if size is None else (size, "fp32")
        strided = apart and p.layout == "bshd"
        self.held[name] = Tensor(
            name, p.batch, heads, p.seq_q, cols, width, role, format=kind, strided=strided
        )
        return name

    def states(
        self, name: str, rows: int, cols: int, role: Role, size: int, *, chunks: bool = False
    ) -> str:
        """A tensor with a state a head, or one a chunk and head."""
        p = self.problem
        self.held[name] = Tensor(
            name, p.batch, p.heads, rows, cols, size, role, copies=self.chunks if chunks else 1
        )
        return name

    def read(self, name: str, times: int = 1, per: Per = Per.QUERY) -> Access:
        """A load of a chunk's rows, `times` over: by so many CTAs that share them. A number a token and head lies as
        many numbers from the next token's as there are heads, where heads lie between tokens and columns."""
        return load(name, ROWS[per], per, times=times, packet_rows=self._packet(name))

    def write(self, name: str, per: Per = Per.QUERY) -> Access:
        return store(name, ROWS[per], per, packet_rows=self._packet(name))

    def _packet(self, name: str) -> int:
        return int(self.held[name].is_vector and self.held[name].strided)

    def own(self, name: str, times: int = 1, per: Per = Per.QUERY) -> Access:
        return load(name, Rows.OWN, per, times=times)

    def columns_shared(self, columns: int) -> int:
        """CTAs that take so many columns of V each, and read what they share for themselves."""
        return -(-self.problem.head_dim_v // columns)

    def side_by_side(self, keys: bool = False, block: int | None = None) -> Domain:
        """All chunks of V's heads, or of Q's and K's, or as many blocks of tokens."""
        p = self.problem
        return Domain(
            p.batch,
            p.kv_heads if keys else p.heads,
            p.seq_q,
            1,
            self.chunk if block is None else block,
            1,
        )

    def over_chunks(
        self,
        name: str,
        reads: Moved,
        writes: Moved,
        work: Work = IDLE,
        over: Domain | None = None,
        kept_numbers: Kept = (0, 0),
    ) -> None:
        """A launch that takes all chunks of V's heads, or what it goes `over`, side by side."""
        domain = over or self.side_by_side()
        loads = (self.read(n) if isinstance(n, str) else n for n in reads)
        stores = (self.write(n) if isinstance(n, str) else n for n in writes)
        self.launches.append(
            row_pass(name, domain, loads, stores, resources=self._taken(*kept_numbers), work=work)
        )

    def walk(
        self,
        name: str,
        accesses: tuple[Access, ...],
        ctas: int,
        kept_numbers: int,
        dependent: Dependent,
        flops: int = 0,
    ) -> None:
        """The launch that walks a sequence's chunks, each state divided among `ctas`, which keep so many fp32 numbers
        each; `flops` a token and column."""
        p, k = self.problem, self.kernel
        before = (load(self.initial(), Rows.OWN, Per.QUERY),) if self.reads_state else ()
        after = (store(self.last(), Rows.OWN, Per.QUERY),) if self.options.writes_state else ()
        # The state's columns stand on the query axis, the tokens on the key axis: a work tile walks all
        # chunks of a sequence.
        staged = k.tile.stages * 2 * self.chunk * p.head_dim if flops else 0
        domain = Domain(p.batch, p.heads, p.head_dim_v, p.seq_q, p.head_dim_v, self.chunk)
        work = Work(flops, product_ctas=ctas, stages=k.tile.stages, dependent=dependent)
        every = (*before, *accesses, *after)
        taken = self._taken(kept_numbers, staged)
        self.launches.append(Launch(name, domain, Outer.QUERY, every, k.schedule, taken, work=work))

    def _taken(self, kept_numbers: int, staged: int) -> Resources:
        """What a CTA takes of an SM: as the kernel states it, else for the numbers it keeps and stages."""
        k, threads = self.kernel, self.kernel.cta_threads
        registers = (
            min(MOST_REGISTERS, loop_registers(kept_numbers, threads)) if kept_numbers else None
        )
        shared = staged * self.problem.input_type.bytes
        return Resources(threads, k.registers or registers, k.shared_memory_bytes or shared)

    @property
    def reads_state(self) -> bool:
        stated = self.options.reads_state
        return self.problem.seq_k > self.problem.seq_q if stated is None else stated

    @property
    def is_step(self) -> bool:
        return self.problem.seq_q <= self.options.step_tokens

    def initial(self) -> str:
        p = self.problem
        return self.states(STATE, p.head_dim, p.head_dim_v, Role.INPUT, STATE_BYTES)

    def last(self) -> str:
        p = self.problem
        return self.states("state_after", p.head_dim, p.head_dim_v, Role.OUTPUT, STATE_BYTES)

    def step(self, *reads: str | Access) -> None:
        """A step of decoding: one launch that reads every state, changes it for each new token, and writes it."""
        tokens, ctas = self.problem.seq_q, self.columns_shared(self.options.step_columns)
        reads, writes = (
            (*reads, self.own(self.initial())),
            ("O", store(self.last(), Rows.OWN, Per.QUERY)),
        )
        dependent = Dependent(loads=STEP_LOADS, products=STEP_SUMS * tokens)
        self.over_chunks(
            "step",
            reads,
            writes,
            Work(product_ctas=ctas, dependent=dependent),
            self.side_by_side(block=tokens),
        )

    def chain(self) -> Chain:
        return Chain(self.held, tuple(self.launches), self.kernel.notes)
