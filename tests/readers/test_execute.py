"""The executing reader itself: rounding, dropout, what a body may and may not do, and what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from effort import examples
from executor import (
    Body,
    ExecutionError,
    Place,
    body,
    execute,
    kept_weights,
    random_arrays,
    reference,
    round_to,
)
from executor.body import _BODIES
from executor.memory import Memory, moved_bytes, storage_format
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from strategies import TOLERANCE, altered, table

import iosim.catalog.algorithms.registry as registered
from iosim.base.errors import InputError
from iosim.catalog.algorithms import algorithm, algorithms, plan
from iosim.catalog.algorithms.common import matrix, score_matrix
from iosim.catalog.algorithms.flash_options import FlashOptions
from iosim.kernel.kernel import Kernel, Schedule, Tile
from iosim.kernel.launch import (
    Access,
    Chain,
    Domain,
    Edge,
    Launch,
    Mode,
    Outer,
    Per,
    Role,
    Rows,
    Tensor,
)
from iosim.kernel.schedule import Direction
from iosim.problem.attention import AttentionProblem


def flash(tile: tuple[int, int] = (8, 8), **changes: Any) -> Kernel:
    return Kernel("flash", "flash", Tile(*tile), **changes)


# Rounding.


@pytest.mark.parametrize(
    ("name", "value", "rounded"),
    [
        # fp8 E4M3: 3 bits after the point; between 1 and 2 the unit is 1/8, ties to even
        ("fp8", 1 + 1 / 16, 1.0),
        ("fp8", 1 + 3 / 16, 1.25),
        ("fp8", 1.07, 1.125),
        ("fp8", -1.07, -1.125),
        ("fp8", 2.0**-9, 2.0**-9),  # the smallest subnormal
        ("fp8", 2.0**-10, 0.0),  # half of it: a tie, to even
        ("fp8", 1.5 * 2.0**-9, 2.0**-8),
        ("fp8", 448.0, 448.0),
        ("fp8", 1e9, 448.0),  # saturates
        ("fp8", -np.inf, -448.0),
        # bf16: 7 bits after the point
        ("bf16", 1 + 2.0**-8, 1.0),
        ("bf16", 1 + 3 * 2.0**-8, 1 + 2.0**-6),
        ("bf16", 3.4e38, np.inf),
        ("bf16", -np.inf, -np.inf),
        ("bf16", 2.0**-133, 2.0**-133),  # the smallest subnormal
        ("bf16", 2.0**-135, 0.0),
        # tf32 and fp16: 10 bits
        ("tf32", 1 + 2.0**-11, 1.0),
        ("tf32", 1 + 3 * 2.0**-11, 1 + 2.0**-9),
        ("fp16", 1 + 2.0**-11, 1.0),
        ("fp16", 65520.0, np.inf),
        ("fp16", 2.0**-24, 2.0**-24),
        ("fp32", 1 + 2.0**-24, 1.0),
        ("fp64", 1 + 2.0**-52, 1 + 2.0**-52),
    ],
)
def test_rounding_to_nearest_even(name: str, value: float, rounded: float) -> None:
    assert round_to([value], name).tolist() == [rounded]


@pytest.mark.parametrize("name", ["fp8", "bf16", "tf32", "fp16", "fp32", "fp64"])
def test_rounding_keeps_nan_and_zero_and_is_done_once(name: str) -> None:
    assert np.isnan(round_to([np.nan], name)).all()
    assert round_to([0.0, -0.0], name).tolist() == [0.0, 0.0]
    values = np.random.default_rng(0).standard_normal(1000) * 50
    once = round_to(values, name)
    np.testing.assert_array_equal(round_to(once, name), once)


@settings(max_examples=examples(200), deadline=None)
@given(hnp.arrays(np.float32, 20, elements=st.floats(-448, 448, width=32)))
def test_rounding_is_torchs(values: np.ndarray) -> None:
    torch = pytest.importorskip("torch", reason="torch, the oracle of rounding, is not installed")
    kinds = {"fp8": torch.float8_e4m3fn, "bf16": torch.bfloat16, "fp16": torch.float16}
    for name, kind in kinds.items():
        np.testing.assert_array_equal(
            round_to(values, name), torch.tensor(values).to(kind).double().numpy()
        )


# Dropout.


def test_dropout_depends_on_every_index_and_on_nothing_else() -> None:
    heads, i, j = np.ogrid[:3, :40, :50]
    whole = kept_weights(7, 1, heads, i, j, 0.3)
    assert whole.shape == (3, 40, 50)
    tile = kept_weights(7, 1, np.array([[2]]), i[0, 10:20], j[0, :, 30:50], 0.3)
    np.testing.assert_array_equal(tile, whole[2, 10:20, 30:50])
    for other in (kept_weights(8, 1, heads, i, j, 0.3), kept_weights(7, 0, heads, i, j, 0.3)):
        assert 0.3 < np.mean(other != whole) < 0.55  # 2 x 0.3 x 0.7 = 0.42 where independent
    for a, b in ((whole[0], whole[1]), (whole[:, 0], whole[:, 1]), (whole[..., 0], whole[..., 1])):
        assert (a != b).any()


@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.5, 0.9])
def test_dropout_keeps_its_share(dropout: float) -> None:
    i, j = np.ogrid[:300, :300]
    share = kept_weights(0, 0, 0, i, j, dropout).mean()
    assert abs(share - (1 - dropout)) < 5 * (dropout * (1 - dropout) / 90_000) ** 0.5 + 1e-12


# The reference.


def test_reference_of_two_keys_by_hand() -> None:
    """Scores 0 and log 3: weights 1/4 and 3/4, LSE log 4. With causal the first of two queries sees the first key."""
    problem = AttentionProblem(seq_q=2, head_dim=1, dtype="fp32")
    arrays = {"Q": [[[[1.0], [1.0]]]], "K": [[[[0.0], [np.log(3.0)]]]], "V": [[[[4.0], [8.0]]]]}
    got = reference(problem, arrays)
    np.testing.assert_allclose(got["O"].ravel(), [7.0, 7.0])
    np.testing.assert_allclose(got["LSE"].ravel(), [np.log(4.0)] * 2)
    causal = reference(problem.with_(mask="causal"), arrays)
    np.testing.assert_allclose(causal["O"].ravel(), [4.0, 7.0])
    np.testing.assert_allclose(causal["LSE"].ravel(), [0.0, np.log(4.0)], atol=1e-15)


def test_reference_gradient_is_the_slope() -> None:
    """dQ, dK, dV against central differences of sum(O o dO), dropout included."""
    problem = AttentionProblem(
        heads=2,
        kv_heads=1,
        seq_q=4,
        seq_k=5,
        head_dim=3,
        mask="causal",
        dropout=0.3,
        dtype="fp32",
        passes="fwd+bwd",
    )
    arrays = random_arrays(problem, 3)
    right = reference(problem, arrays, 3)
    for name in "QKV":
        for index in list(np.ndindex(arrays[name].shape))[::3]:
            slope = 0.0
            for step in (1e-6, -1e-6):
                shifted = {n: a.copy() for n, a in arrays.items()}
                shifted[name][index] += step
                slope += np.sign(step) * float(
                    (reference(problem, shifted, 3)["O"] * arrays["dO"]).sum()
                )
            assert abs(slope / 2e-6 - right[f"d{name}"][index]) < 1e-7


# Executions.


@pytest.mark.parametrize("algorithm", ["flash", "flash1", "naive", "math"])
def test_rows_without_keys_are_zero(algorithm: str) -> None:
    problem = AttentionProblem(heads=2, seq_q=9, seq_k=6, head_dim=4, mask="causal", dtype="fp16")
    done = execute(problem, Kernel(algorithm, algorithm, Tile(4, 4)))
    assert (done.outputs["O"][:, :, :3] == 0).all()  # offset -3: rows 0 to 2 keep no key
    assert np.abs(done.outputs["O"][:, :, 3:]).min() > 0
    if algorithm == "flash":
        assert np.isneginf(done.outputs["LSE"][:, :, :3]).all()
        assert np.isfinite(done.outputs["LSE"][:, :, 3:]).all()


def test_every_split_may_be_empty() -> None:
    problem = AttentionProblem(seq_q=4, seq_k=6, head_dim=4, mask="causal", offset=-9)
    for statistics in (1, 2):
        done = execute(
            problem, flash((4, 2), splits=3, options=FlashOptions(statistics_per_row=statistics))
        )
        assert (done.outputs["O"] == 0).all()
        assert np.isneginf(done.outputs["LSE"]).all()
        assert done.traffic.total("l2", "read", launch="main") == 0


def test_given_arrays_are_rounded_as_they_are_stored() -> None:
    problem = AttentionProblem(seq_q=5, head_dim=4, dtype="bf16")
    arrays = {name: np.random.default_rng(1).standard_normal((1, 1, 5, 4)) for name in "QKV"}
    rounded = {name: round_to(a, "bf16") for name, a in arrays.items()}
    exact, stored = (execute(problem, flash(), a).outputs["O"] for a in (arrays, rounded))
    np.testing.assert_array_equal(exact, stored)
    np.testing.assert_array_equal(stored, round_to(stored, "bf16"))


def test_an_execution_repeats_and_a_seed_changes_it() -> None:
    problem = AttentionProblem(seq_q=9, head_dim=4, dropout=0.4)
    first, again, other = (execute(problem, flash(), seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.outputs["O"], again.outputs["O"])
    assert (first.outputs["O"] != other.outputs["O"]).any()
    assert table(first.traffic) == table(other.traffic)


def test_a_backward_alone_is_the_second_half_of_both() -> None:
    for planner in ("flash", "flash1", "naive"):
        plain = Kernel(planner, planner, Tile(4, 4), writes_lse=False)
        problem = AttentionProblem(
            heads=2, seq_q=9, head_dim=4, dropout=0.3, mask="causal", passes="bwd"
        )
        alone = execute(problem, plain)
        both = execute(problem.with_(passes="fwd+bwd"), plain)
        for name in ("dQ", "dK", "dV"):
            np.testing.assert_array_equal(alone.outputs[name], both.outputs[name])
        assert "O" not in alone.outputs
        assert table(alone.traffic) == {
            k: n for k, n in table(both.traffic).items() if k[0].startswith("bwd.")
        }


def test_the_direction_of_the_keys_moves_the_same_bytes_and_gives_the_same_output() -> None:
    problem = AttentionProblem(heads=3, seq_q=20, head_dim=4, mask="causal", dtype="fp32")
    runs = [execute(problem, flash((4, 4), schedule=Schedule(direction=d))) for d in Direction]
    for run in runs[1:]:
        assert table(run.traffic) == table(runs[0].traffic)
        np.testing.assert_allclose(run.outputs["O"], runs[0].outputs["O"], atol=TOLERANCE["fp32"])


def test_packing_reads_the_group_once_and_changes_no_output() -> None:
    problem = AttentionProblem(
        batch=2, heads=8, kv_heads=2, seq_q=1, seq_k=30, head_dim=4, dropout=0.2
    )
    apart, packed = (
        execute(problem, flash((16, 8), packs_group=p, splits=2)) for p in (False, True)
    )
    np.testing.assert_array_equal(apart.outputs["O"], packed.outputs["O"])
    k_bytes = [x.traffic.total("l2", "read", tensor="K") for x in (apart, packed)]
    assert k_bytes == [4 * 2 * 2 * 30 * 4 * 2, 2 * 2 * 30 * 4 * 2]  # 4 heads a group


def test_keys_past_the_needed_ones_are_not_used() -> None:
    """With NEEDED, what the edge leaves out reads as zero: the output shows that nothing kept was left out."""
    problem = AttentionProblem(seq_q=13, head_dim=4, mask="causal", dtype="fp32")
    whole, needed = (execute(problem, flash((4, 8), edge_k=e)) for e in (Edge.EXACT, Edge.NEEDED))
    np.testing.assert_array_equal(whole.outputs["O"], needed.outputs["O"])
    assert needed.traffic.total("l2", "read", tensor="K") < whole.traffic.total(
        "l2", "read", tensor="K"
    )


def test_too_large_a_problem_is_refused() -> None:
    for problem in (
        AttentionProblem(seq_q=1 << 20, head_dim=64),
        AttentionProblem(seq_q=1 << 16, head_dim=1),
    ):
        with pytest.raises(InputError, match="too large to execute"):
            execute(problem, flash())


def test_an_array_of_another_shape_is_refused() -> None:
    problem = AttentionProblem(seq_q=5, head_dim=4)
    with pytest.raises(
        InputError, match=r"array K has shape \(1, 1, 4, 4\); accepted: \(1, 1, 5, 4\)"
    ):
        execute(problem, flash(), random_arrays(problem) | {"K": np.zeros((1, 1, 4, 4))})


# Bytes and formats.


@pytest.mark.parametrize(
    ("tensor", "access", "rows", "cols", "expected"),
    [
        (Tensor("K", 1, 1, 9, 10, 2, Role.INPUT), {}, 5, 10, 100),
        (Tensor("K", 1, 1, 9, 10, 2, Role.INPUT, strided=True), {}, 5, 10, 160),  # a sector a row
        (Tensor("K", 1, 1, 9, 17, 2, Role.INPUT, strided=True), {}, 5, 17, 320),  # 34 bytes: two
        (Tensor("LSE", 1, 1, 9, 1, 4, Role.OUTPUT), {}, 8, 1, 32),
        (Tensor("LSE", 1, 1, 9, 1, 4, Role.OUTPUT), {}, 9, 1, 64),
        (Tensor("LSE", 1, 1, 9, 1, 4, Role.OUTPUT), {}, 0, 1, 0),
        (Tensor("LSE", 1, 1, 9, 1, 4, Role.OUTPUT), {"packet_rows": 4}, 9, 1, 96),
        (
            Tensor("S", 1, 1, 9, 9, 1, Role.TEMP),
            {"rows": Rows.PAIR},
            3,
            1,
            3,
        ),  # a tile of one column is no vector
    ],
)
def test_bytes_of_one_touch(
    tensor: Tensor, access: dict[str, Any], rows: int, cols: int, expected: int
) -> None:
    one_access = Access(
        **({"tensor": tensor.name, "mode": Mode.LOAD, "rows": Rows.QUERY, "per": Per.PAIR} | access)
    )
    assert moved_bytes(tensor, one_access, rows, cols, rows) == expected


def test_storage_formats() -> None:
    problem = AttentionProblem(dtype="fp8", seq_q=2)

    def made(name: str, size: int) -> str:
        return storage_format(Tensor(name, 1, 1, 2, 2, size, Role.TEMP), problem)

    assert [made("Q", 1), made("O", 2), made("P", 1), made("P", 2), made("dS", 2)] == [
        "fp8",
        "bf16",
        "fp8",
        "bf16",
        "bf16",
    ]
    assert [made("LSE", 4), made("x", 8)] == ["fp32", "fp64"]
    assert (
        storage_format(
            Tensor("P", 1, 1, 2, 2, 4, Role.TEMP), problem.with_(dtype="tf32", output="tf32")
        )
        == "fp32"
    )
    with pytest.raises(ExecutionError, match="tensor x has 3 bytes an element"):
        made("x", 3)


def test_a_matrix_is_stored_as_the_problem_says() -> None:
    """Whatever it is called; and scores that begin with a d are scores."""
    problem = AttentionProblem(dtype="fp16", output="bf16", seq_q=2)
    query = matrix(problem, "Q", Role.INPUT)
    gradient = matrix(problem, "dK", Role.TEMP)
    for tensor, expected in (
        (query, "fp16"),
        (replace(query, name="dear"), "fp16"),
        (gradient, "bf16"),
        (replace(gradient, name="X"), "bf16"),
        (replace(gradient, element_bytes=4), "fp32"),
        (score_matrix(problem, "dS", Role.TEMP), "fp16"),
    ):
        assert storage_format(tensor, problem) == expected
    with pytest.raises(ValueError, match="matrix rank is not known; accepted: Q, K"):
        matrix(problem, "rank", Role.TEMP)


# What descriptions and bodies may do. A little algorithm of the test's own: Y = 2 X, a row block at a time.


@pytest.fixture
def doubling() -> Iterator[tuple[AttentionProblem, Kernel, Chain]]:
    bodies_before = dict(_BODIES)
    algorithms_before = dict(registered._ALGORITHMS)

    @algorithm("doubling", override=True)
    def planned(problem: AttentionProblem, kernel: Kernel) -> Chain:
        raise NotImplementedError("tests hand its chain over")

    @body("doubling", "main", override=True)
    def double(at: Place) -> None:
        at.put("Y", 2 * at["X"])

    x, y = (Tensor(n, 1, 1, 5, 3, 4, r) for n, r in (("X", Role.INPUT), ("Y", Role.OUTPUT)))
    accesses = (
        Access("X", Mode.LOAD, Rows.QUERY, Per.QUERY),
        Access("Y", Mode.STORE, Rows.QUERY, Per.QUERY),
    )
    launch = Launch("main", Domain(1, 1, 5, 1, 2, 1), Outer.FLAT, accesses)
    yield (
        AttentionProblem(seq_q=5),
        flash().with_(algorithm="doubling"),
        Chain({"X": x, "Y": y}, (launch,)),
    )
    for registry, before in ((_BODIES, bodies_before), (registered._ALGORITHMS, algorithms_before)):
        registry.clear()
        registry.update(before)


Doubling = tuple[AttentionProblem, Kernel, Chain]
X = {"X": np.arange(15.0).reshape(1, 1, 5, 3)}


def test_an_algorithm_of_ones_own(doubling: Doubling) -> None:
    problem, doubler, chain = doubling
    done = execute(problem, doubler, X, chain=chain)
    np.testing.assert_array_equal(done.outputs["Y"], 2 * X["X"])
    assert table(done.traffic) == {("main", "X", "read"): 60, ("main", "Y", "write"): 60}


def _faulty(chain: Chain, *changes: tuple[int, dict[str, Any]]) -> Chain:
    accesses = list(chain.launches[0].accesses)
    for n, change in changes:
        accesses[n] = replace(accesses[n], **change)
    return altered(chain, "main", accesses=tuple(accesses))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([(0, {"mode": Mode.STORE, "tensor": "Y"})], "access of Y is there twice"),
        ([(0, {"per": Per.KEY})], "per k has no place in work tiles of flat"),
        ([(0, {"rows": Rows.KEY})], "has a tile along k and is made per q"),
        ([(0, {"skip": 1})], "skips visits but is per q"),
        ([(1, {"mode": Mode.LOAD})], "Y is loaded before anything has written it"),
        ([(0, {"rows": Rows.PAIR, "per": Per.PAIR})], "X has 3 columns, the launch 1 keys"),
        ([(0, {"rows": Rows.KEY, "per": Per.PAIR})], "X has 5 rows, the launch 1 along k"),
    ],
)
def test_faulty_accesses(
    doubling: Doubling, changes: list[tuple[int, dict[str, Any]]], message: str
) -> None:
    problem, doubler, chain = doubling
    with pytest.raises(ExecutionError, match=message):
        execute(problem, doubler, X, chain=_faulty(chain, *changes))


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ((1,), "uses a tile of X that it has not loaded here"),
        ((0,), "has a value of Y and no access here to store it"),
    ],
)
def test_missing_accesses(doubling: Doubling, keep: tuple[int, ...], message: str) -> None:
    problem, doubler, chain = doubling
    kept_accesses = tuple(chain.launches[0].accesses[n] for n in keep)
    with pytest.raises(ExecutionError, match=message):
        execute(problem, doubler, X, chain=altered(chain, "main", accesses=kept_accesses))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({"rows": 6}, "X has 6 rows, the launch 5 along q"),
        ({"heads": 2}, "X has 2 heads, the grid 1"),
        ({"batch": 2}, "X has 2 sequences, the grid 1"),
    ],
)
def test_tensors_that_do_not_fit_the_grid(
    doubling: Doubling, tensor: dict[str, int], message: str
) -> None:
    problem, doubler, chain = doubling
    x = replace(chain.tensors["X"], **tensor)
    held = replace(chain, tensors={**chain.tensors, "X": x})
    with pytest.raises(ExecutionError, match=message):
        execute(problem, doubler, {"X": np.zeros((x.batch, x.heads, x.rows, 3))}, chain=held)


def test_heads_that_store_over_each_other(doubling: Doubling) -> None:
    problem, doubler, chain = doubling
    domain = replace(chain.launches[0].domain, heads=2)
    with pytest.raises(
        ExecutionError, match="several heads of the grid store over each other in Y"
    ):
        execute(problem, doubler, X, chain=altered(chain, "main", domain=domain))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda at: at.put("Y", np.zeros((at.q.size, 3))), "loads X and never uses it"),
        (lambda at: at["X"], "stores Y here and has no value for it"),
        (lambda at: at.put("Y", at["X"][:, :2]), r"a tile of Y has shape \(2, 3\), not \(2, 2\)"),
    ],
)
def test_faulty_bodies(doubling: Doubling, function: Any, message: str) -> None:
    problem, doubler, chain = doubling
    body("doubling", "main", override=True)(function)
    with pytest.raises(ExecutionError, match=message):
        execute(problem, doubler, X, chain=chain)


def test_a_flat_launch_has_one_key_block(doubling: Doubling) -> None:
    problem, doubler, chain = doubling
    domain = replace(chain.launches[0].domain, seq_k=2)
    with pytest.raises(ExecutionError, match="is flat and has several key blocks"):
        execute(problem, doubler, X, chain=altered(chain, "main", domain=domain))


def test_an_atomic_add_needs_a_start(doubling: Doubling) -> None:
    """Memory that nobody has written holds NaN, so a sum that nobody has zeroed shows."""
    problem, doubler, chain = doubling
    done = execute(problem, doubler, X, chain=_faulty(chain, (1, {"mode": Mode.REDUCE})))
    assert np.isnan(done.outputs["Y"]).all()


def test_bodies_are_registered_once(doubling: Doubling) -> None:
    problem, doubler, chain = doubling
    with pytest.raises(ValueError, match=r"body .*doubling.*main.* is registered already"):
        body("doubling", "main")(Body)
    renamed = altered(chain, "main", name="other")
    with pytest.raises(
        ExecutionError, match="launch 'other' of algorithm 'doubling' has no body to execute"
    ):
        execute(problem, doubler, X, chain=renamed)
    numbered = altered(chain, "main", name="main12")
    assert execute(problem, doubler, X, chain=numbered).traffic.total("l2") == 120


def test_every_algorithm_can_be_executed() -> None:
    for name in algorithms():
        only = (
            {"dtype": "bf16", "mask": "causal"}
            if name in ("delta_rule", "moba", "nsa", "ssd")
            else {"dtype": "fp32"}
        )
        heads = {"heads": 16, "kv_heads": 1} if name == "nsa" else {}
        problem = AttentionProblem(seq_q=8, head_dim=4, latent_kv=name == "mla", **heads, **only)
        assert "O" in execute(problem, Kernel(name, name, Tile(4, 4))).outputs


def test_unwritten_memory_is_nan() -> None:
    problem = AttentionProblem(seq_q=3, head_dim=2)
    memory = Memory(plan(problem, flash()), problem, random_arrays(problem))
    assert np.isnan(memory.array("O")).all()
    assert memory.array("O").shape == (1, 1, 3, 2)
    assert memory.array("LSE").shape == (1, 1, 3)
    assert memory.written == {"Q", "K", "V"}
