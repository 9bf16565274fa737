"""`ssd`: Mamba-2's state space duality (arXiv 2405.21060, section 6), in the five launches of state-spaces/mamba
(mamba_ssm/ops/triton/ssd_combined.py, _mamba_chunk_scan_combined_fwd).

    S <- exp(A dt) S + dt B x^T,    o = C^T S

The problem's Q, K and V are C, B and x: `kv_heads` are its groups, `head_dim` the columns of its state, `head_dim_v`
those of its heads. `dt` is a number a token and head, A one a head.

    chunk_cumsum    A dt, summed within each chunk, and dt, in fp32
    chunk_state     what a chunk adds to the state, in fp32
    state_passing   walks the chunks and writes the state before each
    bmm             C B^T of a chunk, in fp32, a group at a time
    chunk_scan      o, from the state before the chunk and from its own tokens

NB: D, z and the bias of dt are left out. A CTA of chunk_scan is counted to read all of its chunk's x and C B^T, where
the kernel ends at its diagonal; the decay of a whole chunk stands as a tensor of its own.
"""

from __future__ import annotations

from iosim.base.records import dataclass
from iosim.catalog.algorithms.common import store
from iosim.catalog.algorithms.registry import algorithm, options_of
from iosim.catalog.algorithms.states import GATE_BYTES, STATE_BYTES, Moved, StateChain, StateOptions
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain, Per, Role, Rows, Tensor
from iosim.kernel.options import number
from iosim.kernel.work import Dependent, Work
from iosim.problem.attention import AttentionProblem


@dataclass(frozen=True)
class SsdOptions(StateOptions):
    """Options of all states; `scan_rows`: tokens of a CTA of chunk_scan and of bmm; `pass_numbers`: of a state that a
    CTA of state_passing takes."""

    scan_rows: int = number(128, 1)
    pass_numbers: int = number(1024, 1)


@algorithm(
    "ssd", options=SsdOptions, softmax=False, dtypes=("fp16", "bf16"), example_tile=Tile(64, 256)
)
def plan_ssd(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The launches of a prefill, or of a step of decoding. Raises InputError: what `states.check` refuses."""
    b, options, p = StateChain(problem, kernel, SsdOptions), options_of(kernel, SsdOptions), problem
    n, columns = p.head_dim, p.head_dim_v
    b.rows("Q", n, Role.INPUT, keys=True)
    b.rows("K", n, Role.INPUT, keys=True)
    b.rows("V", columns, Role.INPUT)
    b.rows("dt", 1, Role.INPUT, size=GATE_BYTES, apart=False)
    b.held["A"] = Tensor("A", 1, p.heads, 1, 1, GATE_BYTES, Role.INPUT)
    b.rows("O", columns, Role.OUTPUT)
    if b.is_step:
        # CTAs of a head divide V's columns, and each reads what they share for itself.
        beside = b.columns_shared(options.step_columns)
        b.step(*(b.read(x, beside) for x in ("Q", "K", "dt")), b.own("A", beside), "V")
    else:
        _states(b, options)
        _outputs(b, options)
    return b.chain()


def _states(b: StateChain, options: SsdOptions) -> None:
    n, columns = b.problem.head_dim, b.problem.head_dim_v
    b.rows("dt_chunk", 1, size=GATE_BYTES, apart=False)
    b.rows("sums", 1, size=GATE_BYTES, apart=False)
    b.states("decay", 1, 1, Role.TEMP, GATE_BYTES, chunks=True)
    written = ("dt_chunk", "sums", store("decay", Rows.OWN, Per.QUERY))
    b.over_chunks("chunk_cumsum", ("dt", b.own("A")), written, Work(dependent=Dependent(loads=1)))
    b.states("added", n, columns, Role.TEMP, STATE_BYTES, chunks=True)
    work = Work(2 * n * columns, dependent=Dependent(loads=2, products=1))
    b.over_chunks(
        "chunk_state", ("K", "V", "dt_chunk", "sums"), (store("added", Rows.OWN, Per.QUERY),), work
    )
    b.states("before", n, columns, Role.TEMP, b.problem.input_type.bytes, chunks=True)
    walkers = -(-(n * columns) // options.pass_numbers)
    reads = (b.own("added", per=Per.PAIR), b.own("decay", walkers, Per.PAIR))
    stores = (store("before", Rows.OWN, Per.PAIR),)
    b.walk("state_passing", (*reads, *stores), walkers, options.pass_numbers, Dependent(loads=1))


def _outputs(b: StateChain, options: SsdOptions) -> None:
    n, columns, blocks = b.problem.head_dim, b.problem.head_dim_v, -(-b.chunk // options.scan_rows)
    b.rows("CB", b.chunk, size=GATE_BYTES, keys=True)
    work = Work(2 * b.chunk * n, product_ctas=blocks, dependent=Dependent(loads=1, products=1))
    b.over_chunks("bmm", ("Q", b.read("K", blocks)), ("CB",), work, b.side_by_side(keys=True))
    reads: Moved = (
        "Q",
        "CB",
        *(b.read(x, blocks) for x in ("V", "dt_chunk", "sums")),
        b.own("before", blocks),
    )
    flops = 2 * n * columns + 2 * b.chunk * columns
    work = Work(flops, product_ctas=blocks, dependent=Dependent(loads=2, products=2))
    b.over_chunks("chunk_scan", reads, ("O",), work)
