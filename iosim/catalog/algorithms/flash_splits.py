"""Split keys: partial outputs and statistics pass through memory, and launches over rows combine them."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.catalog.algorithms.common import (
    load,
    store,
)
from iosim.catalog.algorithms.flash_options import SplitOptions
from iosim.catalog.algorithms.flash_rows import (
    product_columns,
)
from iosim.catalog.algorithms.registry import options_of
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import (
    Chain,
    Domain,
    Launch,
    LaunchRole,
    Outer,
    Per,
    Resources,
    Role,
    Rows,
    Tensor,
    tensors,
)
from iosim.kernel.tensor_kinds import (
    OUTPUT_PARTIAL,
    TensorKind,
)
from iosim.kernel.work import Fragments, Layout, Work
from iosim.problem.attention import AttentionProblem

MAX_COMBINE_BLOCKS = 1 << 26


COMBINES = {Layout.CHUNKS: Fragments(Layout.SPLIT_WEIGHTS)}
"""How the combine stages what it reads, by how the forward does."""


STATISTICS_ROWS = 128
"""Rows that a CTA takes of what splits leave beside their outputs, where a launch of its own reads it."""


def split_chain(
    problem: AttentionProblem, kernel: Kernel, main: Launch, by_name: dict[str, Tensor]
) -> Chain:
    """Split-KV: partial O and statistics of every split go through memory, then one launch combines them. The partial
    LSE is `SplitOptions.statistics_per_row` fp32 values a row."""
    splits, d = main.domain.splits, main.domain
    rows = d.batch * d.heads * d.rows
    options = options_of(kernel, SplitOptions)
    statistics = options.statistics_per_row
    shape = problem.batch, problem.heads, problem.seq_q
    partial, vectors = _partials(options, problem, shape, splits, statistics)
    per = Per.SPLIT if splits > 1 else Per.QUERY
    writes = tuple(store(n, Rows.QUERY, per) for n in (OUTPUT_PARTIAL, *(v.name for v in vectors)))
    threads = options.combine_threads
    combine_rows = _combine_block(kernel, options, problem, rows, splits, threads)
    statistic_names = [v.name for v in vectors]
    lse = ("LSE",) if kernel.writes_lse else ()
    before, of_rows = (
        _statistics(kernel, shape, splits) if options.combine_launches > 1 else ((), ())
    )
    of_splits = {1: statistic_names, 2: statistic_names[:1], 3: []}[options.combine_launches]
    waits = options.combine_waits + -(-splits // options.combine_loads_at_once) if splits > 1 else 0
    work = Work(
        serial_loads=waits, fragments=kernel.fragments and COMBINES.get(kernel.fragments.layout)
    )

    def reduction(
        name: str, reads: Sequence[str], writes: Sequence[str], block_q: int = STATISTICS_ROWS
    ) -> Launch:
        """A launch over rows, which reads what each split left of them."""
        loads = (
            load(n, Rows.QUERY, Per.SPLIT if n in (OUTPUT_PARTIAL, *statistic_names) else Per.QUERY)
            for n in reads
        )
        stores = (store(n, Rows.QUERY, Per.QUERY) for n in writes)
        # All heads' rows as one; the splits stand on the key axis.
        over = Domain(1, 1, rows, splits, block_q, splits, splits=splits)
        return Launch(
            name, over, Outer.QUERY, (*loads, *stores), resources=Resources(threads), work=work
        )

    reads = (OUTPUT_PARTIAL, *of_splits, *(t.name for t in of_rows))
    combine = reduction("combine", reads, ("O", *(() if before else lse)), combine_rows)
    combine = replace(combine, role=LaunchRole.COMBINE)
    by_name = {**by_name, **tensors((partial, *vectors, *of_rows))}
    main = replace(main, accesses=main.accesses + writes)
    return Chain(
        by_name, (main, *(reduction(*arguments) for arguments in before), combine), kernel.notes
    )


def _partials(
    options: SplitOptions,
    problem: AttentionProblem,
    shape: tuple[int, int, int],
    splits: int,
    statistics: int,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Partial O of every split, and its statistics."""
    # The split launch leaves partial O and statistics, a copy for each split; the combine reads them all
    # and writes O. Between the two may stand launches over the statistics alone.
    partial = Tensor(
        OUTPUT_PARTIAL, *shape, problem.head_dim_v, options.partial_bytes, Role.TEMP, copies=splits
    )
    vectors = tuple(
        Tensor(TensorKind.PARTIAL.of(name), *shape, 1, 4, Role.TEMP, copies=splits)
        for name in (("LSE",) if statistics == 1 else ("max", "sum"))
    )
    return partial, vectors


def _combine_block(
    kernel: Kernel,
    options: SplitOptions,
    problem: AttentionProblem,
    rows: int,
    splits: int,
    threads: int,
) -> int:
    """Rows of a CTA of the combine. Raises InputError: more CTAs than a grid has."""
    combine_rows = options.combine_rows or _combine_rows(
        product_columns(problem, kernel)[1], threads
    )
    if rows > MAX_COMBINE_BLOCKS * combine_rows:
        accepted = f"up to {MAX_COMBINE_BLOCKS:,} (fewer sequences, heads or tokens, or no splits)"
        taken = f"their combination takes {rows // combine_rows:,} CTAs"
        raise InputError(f"`splits` {splits}: {taken}; accepted: {accepted}")
    return combine_rows


def _statistics(
    kernel: Kernel, shape: tuple[int, int, int], splits: int
) -> tuple[tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...], tuple[Tensor, ...]]:
    """(name, reads, writes) of the launches before the combine, and the tensors that they hand it."""
    lse = ("LSE",) if kernel.writes_lse else ()
    both = TensorKind.PARTIAL.of("max"), TensorKind.PARTIAL.of("sum")
    total = Tensor("row_sum", *shape, 1, 4, Role.TEMP)
    if options_of(kernel, SplitOptions).combine_launches == 2:
        return (("statistics", both, ("row_max", "row_sum", *lse)),), (
            replace(total, name="row_max"),
            total,
        )
    weights = Tensor("weights", *shape, splits, 4, Role.TEMP)
    sums = ("sums", (*both[1 - len(lse) :], "weights"), ("row_sum", *lse))
    return (("weights", both[:1], ("weights",)), sums), (weights, total)


def _combine_rows(columns: int, threads: int) -> int:
    """Rows a CTA of FlashAttention's combine kernel takes: 4, 8, 16 where the build's columns are a multiple of 128, of
    64, other, with FlashAttention-2's 128 threads; twice that with FlashAttention-3's 256."""
    rows = 4 if columns % 128 == 0 else 8 if columns % 64 == 0 else 16
    return rows * threads // 128
