"""Work: what a launch computes and what its warps wait for.

Time and energy follow from it, bytes do not: the readers that count, replay or execute never look at it.
"""

from __future__ import annotations

from enum import StrEnum

from iosim.base.records import dataclass, field
from iosim.kernel.machine import Machine


@dataclass(frozen=True)
class Loop:
    """The loop of a kernel's main launch; the defaults are what holds where a kernel says nothing of its forward. Time
    and shared memory follow from it; bytes do not."""

    producer_warps: int | None = None
    """Warps that load and do not compute; None for a warpgroup where one loads."""
    key_warps: int = 1
    """Warps among which a tile's keys are divided, each of which has all of its own rows; 1 where each warp sees all
    keys."""
    q_in_registers: bool = False
    """True where Q is held in registers, and takes no shared memory; else products fetch it from there."""
    p_in_shared: bool = False
    """True where P goes through shared memory between the products; else it stays in registers."""
    loads_ahead: bool | None = None
    """True where a step's keys and values are fetched during the step before; None where it follows from the unit and
    the number of buffers."""
    copy_waits: int = 0
    """Places of a step at which all warps of a CTA wait together for what they copied: one before its products, or one
    before each. They copy anew once the products are begun, and all meet."""
    score_operations: float = 0.0
    """Instructions on each score in every step, beyond its exponential and what every softmax needs."""
    instructions_per_score: float | None = None
    """Instructions that a thread executes for each score in every step, products aside; None where its build was not
    counted."""
    widened: float = 0.0
    """Values of a narrower cache that warps widen for a score, each those of the keys that it multiplies."""
    list_cycles: float = 0.0
    """SM cycles in which a step waits for where its keys begin, out of a list of blocks."""
    serial_loads: float = 0.0
    """Loads of a step that wait for one another, each for the store before it."""
    serial_cycles: float = 0.0
    """SM cycles in which a step's instructions wait for one another, where no other warp issues any."""
    software_exps: float = 0.0
    """Share of the exponentials that are polynomials on the fp32 units."""
    warps_meet: bool = False
    """True where the warps of a CTA divide a step's tile both ways, hand P and dS on in shared memory, and so meet
    between its products and its softmax; else they take turns at the units."""
    interleaves: bool = False
    """True where exponentials begin among the products before them: no branch of a mask lies between."""


@dataclass(frozen=True)
class MaskOperations:
    """Operations on each score for a mask."""

    every_step: float = 0.0
    edge_steps: float = 0.0
    """Lane cycles in those steps of a tile alone that meet an end of what its rows may see."""
    edge_keys: int = 0
    """Keys of these steps; 0: as many as the tile has rows."""
    edge_rows: int = 0
    """Last query rows, all of whose steps are such ones."""
    in_order: bool = False
    """True where the operations are instructions that were counted in a compiled loop, each of which waits for the one
    before it: few warps do not fill the time between them."""


@dataclass(frozen=True)
class SpillAccesses:
    """Loads and stores of spilled registers that a thread makes."""

    step: float = 0.0
    """In a step of the loop."""
    tile: float = 0.0
    """In a work tile, beside those of its steps."""
    frame: float = 0.0
    """Bytes of its stack frame; 0 where they are not known."""


@dataclass(frozen=True)
class Pipelines:
    """Products of a step, each tile of which fetches its operands anew, queries as well, through a pipeline of its
    own."""

    products: int
    depth: int
    """The sum of the products' depths, but for those over the keys of a step."""
    exposed_loads: int = 0
    """Loads of a step that all of its warps wait for, beside those of its products."""
    locked_flops: int = 0
    """Operations of a product whose sums only one CTA of a head at a time may add to, by the lock of its block of
    queries; 0: no lock."""
    over_keys: int = 0
    """How many of the products go over the keys of a step, and are as deep as it has keys."""


@dataclass(frozen=True)
class Dependent:
    """What a step of a work tile does one after the other, with nothing of its next step beside it: the state that a
    step leaves is what the next one begins with."""

    loads: float = 0.0
    """Loads that wait for one another, or for what is computed before them."""
    products: float = 0.0
    """Products each of which waits for the one before, whose result goes through shared memory."""
    rows: int = 0
    """Rows of a triangular system, each of which waits for those before it."""
    instructions: float = 0.0
    """Instructions of a CTA's warps in a step, while which others wait; 0: each further CTA adds what the busiest unit
    takes."""


class Layout(StrEnum):
    """Which way operands take through shared memory (`iosim.kernel.shared_memory` has what each moves)."""

    NOTHING = "nothing"
    """No operand lies there, and a warp counts one: `tile` is then of a row, or `step` the values of a warp."""
    WHOLE_ROWS = "whole-rows"
    """Warps own whole rows of a forward: mma.sync on fragments of Q, K and V."""
    CHUNKS = "chunks"
    """Warps own whole rows of a forward, and rows move 16 bytes by 16 bytes: copies that are asked for one by one,
    stores of zeros where they leave something out, results in pieces of the build's columns."""
    WGMMA = "wgmma"
    """A forward whose warpgroups own 64 rows: wgmma fetches Q, K and V, tiles come and results leave by TMA."""
    TWO_WAYS = "two-ways"
    """A forward whose warps divide a step's products both ways, so that P passes through shared memory."""
    GRADIENTS = "gradients"
    """A backward whose warps divide each of a step's five products both ways, so that P and dS pass through shared
    memory."""
    SPLIT_WEIGHTS = "split-weights"
    """A combine of splits: the log-sum-exps of all splits become weights in shared memory."""
    KEYS_OUTSIDE = "keys-outside"
    """A backward with keys outside, in which a warp owns 16 keys."""
    QUERIES_OUTSIDE = "queries-outside"
    """A backward with queries outside, which computes dQ anew: a warp owns 16 queries."""
    ONE_WARP = "one-warp"
    """A CTA of one warp, in which a thread owns a row."""
    THREAD_ROWS = "thread-rows"
    """A thread owns a row, and lanes ask for their rows' words one by one, which lie in one bank."""
    MULTIPLY_ADDS = "multiply-adds"
    """Products by fp32 multiply-adds, 4 x 4 results a thread."""
    ROWS_OF_SCORES = "rows-of-scores"
    """A softmax whose CTA holds a row of scores."""


@dataclass(frozen=True)
class Fragments:
    """How a launch's warps take operands out of shared memory. `step` and `tile` are wavefronts of a warp, in a step of
    its loop and once a work tile, that hold no operand."""

    layout: Layout
    step: float = 0
    tile: float = 0
    skips_masked: bool = False
    """True where a warp leaves out steps whose pairs the mask takes from all of its rows."""
    stages_output: bool = True
    """True where results leave through shared memory."""
    warps_along: tuple[int, ...] = ()
    """Warps along the first side of a backward's products for scores, for dK and dV, and for dQ."""
    holds_v: bool = False
    """Fragments of V stay in registers in a backward."""

    @property
    def holds_operands(self) -> bool:
        """True where operands lie in shared memory."""
        return self.layout is not Layout.NOTHING


@dataclass(frozen=True)
class Work:
    """`flops_per_pair` and `exps_per_pair` are per pair of query row and key row inside visited tiles."""

    flops_per_pair: int = 0
    exps_per_pair: int = 0
    scores_per_pair: int = 1
    """Scores that a pair stands for: of as many heads as lie side by side in a row (an indexer's)."""
    dtype: str = ""
    """Type of the products' operands, where it is not the problem's; of two products, two types may be joined by +."""
    unit: str = ""
    """What computes the products (a `MatrixUnit`), where it is not the kernel's main launch's."""
    tensor_cores: bool = True
    """True where tensor cores compute the products, where there are any."""
    product_ctas: int = 1
    """CTAs that compute a work tile of a product without an attention loop, each its own rows and columns of it."""
    product_columns: int = 0
    """Columns that such a product's tiles have, where they are more than those of its result: the rest is multiplied and
    not stored."""
    shared_bytes_per_pair: int = 0
    """Bytes between shared memory and registers in whole wavefronts, where products without an attention loop state
    them."""
    fragments: Fragments | None = None
    """How operands pass through shared memory; None where it is not known."""
    stages: int = 1
    """Key/value buffers of the software pipeline."""
    loop: Loop = field(default_factory=Loop)
    mask: MaskOperations = field(default_factory=MaskOperations)
    spill: SpillAccesses = field(default_factory=SpillAccesses)
    code: tuple[int, ...] = (0, 0, 0)
    """`Spill.code`."""
    pipelines: Pipelines | None = None
    add_packets_per_row: int = 0
    """Packets that a row of an atomic add makes, where the lanes of an instruction add to several rows; 0: whole
    lines."""
    add_requests_per_row: int = 0
    """Requests of a row of an atomic add that the warps which compute wait for; `add_packets_per_row` where a request
    is a packet."""
    gather_cycles: float = 0.0
    """SM cycles that each row which a step of a loop gathers takes, on top of all else."""
    tile_shared_bytes: int = 0
    """Bytes between shared memory and registers once a work tile, beside its steps (warps that merge their parts)."""
    serial_loads: int = 0
    """Loads of a work tile that wait for one another (a combine that walks its splits; sums before a loop)."""
    first_loads: int = 0
    """Such loads that are made while the CTA ends the tile before, where warps of their own load."""
    dependent: Dependent | None = None
    """What a step does one after the other, of a launch without an attention loop; None where its units decide."""
    machine: Machine | None = None
    """Its machine code, where that was read: its warps then play it, and no number above that only time follows from is
    used."""
    asks_at_once: bool = False
    """True where a work tile asks for its queries and its first keys at once, and waits for both together."""
    thread_loads: float = 0.0
    """Loads that a thread of a pass waits for, one behind the other, beside its first."""
    issued_per_value: float = 0.0
    """Instructions that a thread of a pass issues for each value of the tensor that it loads first."""
    operations_per_value: int = 0
    """Instructions a thread spends on each value of a pass, where they take longer than its bytes (offsets of a
    strided copy)."""
