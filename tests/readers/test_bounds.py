"""Bytes of inputs that have to be read at least, tensor by tensor, and the memory of a chain, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.launch import Chain, Role, Rows, Tensor
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import memory, needed_bytes

WINDOW = AttentionProblem(
    batch=2, heads=4, kv_heads=2, seq_q=10, seq_k=100, head_dim=8, mask="window", window=20
)
"""Queries 90 to 99 see keys 70 to 99: 30 rows of 100, and each query 21 of them."""
CAUSAL = AttentionProblem(heads=4, seq_q=6, seq_k=4, head_dim=8, mask="causal", offset=0)
"""Query 0 sees a key, query 1 two; from query 3 on all four: 1 + 2 + 3 + 3 x 4 pairs."""
LATE = AttentionProblem(heads=4, seq_q=6, seq_k=4, head_dim=8, mask="causal", offset=-2)
"""Two queries see nothing; the others 1, 2, 3 and 4 keys."""
PICKED = AttentionProblem(
    heads=16,
    kv_heads=1,
    seq_q=2,
    seq_k=1000,
    head_dim=576,
    head_dim_v=512,
    latent_kv=True,
    top_k=64,
    index_heads=8,
)
ROWS = Tensor("X", 2, 2, 100, 8, 2, Role.INPUT)


@pytest.mark.parametrize(
    ("problem", "tensor", "least"),
    [
        (WINDOW, {"along": Rows.KEY}, 2 * 2 * 30 * 8 * 2),  # of 100 rows the 30 that are kept
        (WINDOW, {"along": Rows.QUERY, "rows": 10}, 2 * 2 * 10 * 8 * 2),
        (WINDOW, {"along": Rows.OWN}, 2 * 2 * 100 * 8 * 2),
        (WINDOW, {"along": Rows.PAIR, "rows": 10, "cols": 100}, 2 * 2 * 10 * 21 * 2),
        (CAUSAL, {"along": Rows.PAIR, "rows": 6, "cols": 4}, 2 * 2 * 18 * 2),
        (
            replace(CAUSAL, mask_storage="bool"),
            {"along": Rows.PAIR, "rows": 6, "cols": 4},
            2 * 2 * 6 * 4 * 2,
        ),
        (LATE, {"along": Rows.QUERY, "rows": 6}, 2 * 2 * 4 * 8 * 2),
        (LATE, {"along": Rows.KEY, "rows": 4}, 2 * 2 * 4 * 8 * 2),
        # a block table of pages of 16 keys: 30 kept keys are two entries of each sequence
        (
            WINDOW,
            {"heads": 1, "rows": 7, "cols": 1, "element_bytes": 4, "keys_per_row": 16},
            2 * 2 * 4,
        ),
        (
            replace(WINDOW, window=11),
            {"heads": 1, "rows": 7, "cols": 1, "keys_per_row": 7},
            2 * 3 * 2,
        ),  # 21 keys
        # lists of picked keys are their queries' own
        (LATE, {"along": Rows.QUERY, "rows": 6, "cols": 3, "keys_per_row": 2}, 2 * 2 * 4 * 3 * 2),
        # rows that are picked: all queries may pick the same 64
        (PICKED, {"along": Rows.KEY, "rows": 1000, "picked_by": "lists"}, 2 * 2 * 64 * 8 * 2),
        (PICKED, {"along": Rows.KEY, "rows": 1000}, 2 * 2 * 1000 * 8 * 2),
        # four sequences share their first 16 rows, of two heads: they lie in memory once
        (
            WINDOW,
            {"along": Rows.KEY, "shared_rows": 16, "shared_by": 4},
            (2 * 2 * 30 - 2 * 3 * 16) * 8 * 2,
        ),
        (WINDOW, {"along": Rows.KEY, "rows": 0}, 0),
    ],
)
def test_what_has_to_be_read_of_a_tensor(
    problem: AttentionProblem, tensor: dict[str, Any], least: int
) -> None:
    assert needed_bytes(problem, replace(ROWS, **tensor)) == least


def chain_of(kernel: str, passes: str = "fwd") -> Chain:
    problem = AttentionProblem(heads=2, seq_q=64, head_dim=32, passes=passes, dtype="fp16")
    profile = load_profile("a100")
    return plan(problem, resolve(kernel, problem, profile))


def test_temporaries_live_from_their_first_launch_to_their_last() -> None:
    """Naive attention of 2 heads x 64 tokens x 32 in 16 bits: S, then S and P, then P alone."""
    matrix, scores = 2 * 64 * 32 * 2, 2 * 64 * 64 * 2
    chain = chain_of("naive")
    assert [launch.name for launch in chain.launches] == ["scores", "softmax", "values"]
    temporaries = {t.name: t.bytes for t in chain.role(Role.TEMP)}
    assert temporaries == {"S": scores, "P": scores}
    assert memory(chain) == {"workspace": 2 * scores, "peak": 4 * matrix + 2 * scores}


def test_what_views_take_is_counted_once() -> None:
    chain = chain_of("naive")
    cut = replace(chain.tensors["K"], name="K_cut", view_of="K")
    more = replace(chain.tensors["S"], name="S_cut", view_of="S")
    seen = Chain(chain.tensors | {"K_cut": cut, "S_cut": more}, chain.launches, chain.notes)
    assert memory(seen) == memory(chain)
    whole = Chain(chain.tensors | {"K_cut": replace(cut, view_of="")}, chain.launches, chain.notes)
    assert memory(whole)["peak"] == memory(chain)["peak"] + cut.bytes
