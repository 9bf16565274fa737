"""`LoopAlgorithm`: an algorithm of one launch as a class of a few lines.

Its CTAs hold a block of queries and walk the key blocks that the mask keeps. The class says what is read and written
how often, and what a block computes, which only tests run. Anything else (several launches, keys outside, splits) is a
planner of its own: docs/how-to-add.md.

    class Sigmoid(LoopAlgorithm, name="sigmoid"):
        \"\"\"Each score stands alone: nothing is kept of a row but its output.\"\"\"

        def begin(self, at):
            self.o = np.zeros((at.q.size, at.problem.head_dim_v))

        def pair(self, at):
            self.o += at.kept / (1 + np.exp(-(at["Q"] @ at["K"].T) * at.scale)) @ at["V"]

        def end(self, at):
            at.put("O", self.o)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.catalog.algorithms.common import (
    attention_domain,
    grid,
    load,
    loop_work,
    main_launch,
    matrices,
    store,
)
from iosim.catalog.algorithms.registry import algorithm
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Access, Chain, Outer, Per, Role, Rows, tensors
from iosim.kernel.work import Pipelines
from iosim.problem.attention import AttentionProblem

PAIR_OF = {"Q": Rows.QUERY, "O": Rows.QUERY, "LSE": Rows.QUERY, "K": Rows.KEY, "V": Rows.KEY}


class LoopAlgorithm:
    """Queries outside, keys inside, in one launch of a forward; `name` in the class statement registers it. `loads` and
    `stores` say how often a tile is moved: once a query block (`Per.QUERY`), or at every visited pair of blocks
    (`Per.PAIR`), K and V always the latter. A store of "LSE" is made where the kernel writes one."""

    loads: ClassVar[Mapping[str, Per]] = {"Q": Per.QUERY, "K": Per.PAIR, "V": Per.PAIR}
    stores: ClassVar[Mapping[str, Per]] = {"O": Per.QUERY}
    flops_per_pair: ClassVar[int | None] = None
    """Operations of the products on a pair of a query row and a key row; None: those of QK^T and PV."""
    exps_per_pair: ClassVar[int] = 1

    def __init_subclass__(
        cls, name: str | None = None, override: bool = False, **more: Any
    ) -> None:
        """Register the class; `override` replaces an algorithm of that name, `more` are `algorithm`'s arguments."""
        super().__init_subclass__()
        if name is None:
            return
        for tensor, per in (*cls.loads.items(), *cls.stores.items()):
            if tensor not in PAIR_OF or per not in (
                (Per.PAIR,) if tensor in "KV" else (Per.QUERY, Per.PAIR)
            ):
                accepted = "Q, O and LSE per q or qk, K and V per qk"
                raise ValueError(
                    f"{cls.__name__}: {tensor} per {per} is not possible; accepted: {accepted}"
                )
        algorithm(name, override=override, **more)(cls.plan)

    @classmethod
    def plan(cls, problem: AttentionProblem, kernel: Kernel) -> Chain:
        """The chain of the one launch. Raises InputError: a backward or dropout, which it does not have."""
        for field, value, accepted in (
            ("passes", problem.passes, "fwd"),
            ("dropout", problem.dropout, 0.0),
        ):
            if value != accepted:
                raise InputError(
                    f"`{field}` {value} is not possible with kernel '{kernel.name}'; accepted: {accepted}"
                )
        stored = {t: per for t, per in cls.stores.items() if t != "LSE" or kernel.writes_lse}
        work = loop_work(problem, kernel)
        flops = work.flops_per_pair if cls.flops_per_pair is None else cls.flops_per_pair
        domain, loads = (
            attention_domain(problem, kernel.tile),
            [_load(t, per, kernel) for t, per in cls.loads.items()],
        )
        # Q at every pair means a product with a pipeline of its own.
        anew = any(a.rows is Rows.QUERY and a.per is Per.PAIR for a in loads)
        pipelines = Pipelines(2, problem.head_dim, over_keys=1) if anew else None
        accesses = (*loads, *(store(tensor, Rows.QUERY, per) for tensor, per in stored.items()))
        work = replace(
            work, flops_per_pair=flops, exps_per_pair=cls.exps_per_pair, pipelines=pipelines
        )
        launch = main_launch(
            problem, kernel, domain, Outer.QUERY, accesses, persistent_ctas=grid(kernel), work=work
        )
        names = dict.fromkeys((*cls.loads, *stored))
        roles = {t: Role.OUTPUT if t in stored else Role.INPUT for t in names}
        held = [tensor for t, role in roles.items() for tensor in matrices(problem, t, role)]
        return Chain(tensors(held), (launch,), kernel.notes)


def _load(tensor: str, per: Per, kernel: Kernel) -> Access:
    if PAIR_OF[tensor] is Rows.KEY:
        return load(tensor, Rows.KEY, per, edge=kernel.edge_k)
    per = Per.PAIR if kernel.rereads_q else per
    return load(tensor, Rows.QUERY, per, edge=kernel.edge_q, visited_only=True)
