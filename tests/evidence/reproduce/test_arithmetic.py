"""What rows of published numbers are computed by, on numbers that make the arithmetic plain: no prediction runs."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from iosim.evidence.reproduce import chunk_schedules as runs
from iosim.evidence.reproduce import published, side, training_grid
from iosim.evidence.reproduce.chunk_schedules import Iteration
from iosim.evidence.reproduce.published import Point
from iosim.evidence.reproduce.side import Amount, Side
from iosim.hardware.profile import load_profile
from iosim.problem.attention import AttentionProblem

A100 = load_profile("a100-sxm-80gb")
CAUSAL = AttentionProblem(heads=2, seq_q=640, head_dim=64, mask="causal")


def of(**fields: Any) -> Any:
    """A side with these numbers alone."""
    return SimpleNamespace(gpu=A100, **fields)


# --- several GPUs ---


@pytest.mark.parametrize(
    ("mask", "schedule", "directions", "nd"),
    [
        ("none", "vanilla", ["fwd"], 2),  # K and V of all others
        ("causal", "vanilla", ["fwd"], 1),  # of half of them
        ("causal", "balanced", ["fwd"], 1),
        ("causal", "balanced", ["bwd"], 2),
        ("causal", "balanced", ["fwd", "bwd"], 3),
    ],
)
@pytest.mark.parametrize("gpus", [4, 8])
def test_what_a_gpu_receives(
    mask: str, schedule: str, directions: list[str], nd: int, gpus: int
) -> None:
    """In N x d; papers count a GPU's own chunk, too, which is one of so many."""
    problem = CAUSAL.with_(mask=mask)
    row = runs.received(of(problem=problem), schedule, gpus, directions)
    assert row["computed"] == pytest.approx(nd)
    assert row["counted"] == pytest.approx(nd * (gpus - 1) / gpus)
    over = runs.received(of(problem=problem), schedule, gpus, directions, megatron=12.0)
    assert over["computed"] == pytest.approx(12 / nd)


@pytest.mark.parametrize("shared", [True, False])
def test_eight_gpus_are_a_node(shared: bool) -> None:
    """Within it there is NVLink alone; beyond, a port a node or a GPU."""
    inside = runs._nodes(8, A100, shared=shared)
    assert (inside.network, inside.gpus_per_node, inside.shared_network) == (None, None, False)
    beyond = runs._nodes(9, A100, shared=shared)
    assert beyond.network is not None
    assert beyond.network.bandwidth_bytes_per_s == 12.5e9  # 100 Gb/s
    assert (beyond.link, beyond.gpus_per_node) == (inside.link, 8)
    assert beyond.shared_network is shared


@pytest.mark.parametrize("gpus", [2, 3, 8])
def test_idle_slots(gpus: int) -> None:
    """Unbalanced: GPU n of P idles n of P slots. Balanced: each but the diagonal's chunks has a partner, and of an even
    number half of the GPUs idle once."""
    vanilla = runs.idle_fraction("vanilla", gpus)
    assert vanilla["share"] == vanilla["own"] == Fraction(gpus - 1, 2 * gpus)
    assert vanilla["speed_up"] == pytest.approx((gpus + 1) / 2)
    balanced = runs.idle_fraction("balanced", gpus)
    idle = 0 if gpus % 2 else Fraction(1, gpus + 2)  # of its own slots
    assert balanced["own"] == idle
    assert balanced["computed"] == (0.0 if gpus % 2 else 1 / (2 * gpus))
    assert balanced["speed_up"] == pytest.approx(gpus * (1 - idle))


def test_speed_ups_are_of_the_other_s_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"fast": 2.0, "slow": 5.0}
    monkeypatch.setattr(runs, "_forward_s", lambda name, problem, gpus, gpu: seconds[name])
    alone = of(problem=CAUSAL, time=Amount(8.0))
    assert runs.forward_speed_up(alone, "fast", 8) == {"computed": 4.0, "other": 8.0, "took": 2.0}
    over = runs.forward_speed_up(alone, "fast", 8, "slow")
    assert over == {"computed": 2.5, "other": 5.0, "took": 2.0}


def iterations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Iterations that take 1, 2 and 4 s for each thousand tokens; gives what was asked for."""
    asked_for: list[tuple[Any, ...]] = []

    def iterated(
        scheme: str,
        model: str,
        gpus: int,
        tokens: int,
        gpu: str,
        shared: bool | None,
        recompute: bool = False,
        overlap: bool = True,
    ) -> Iteration:
        asked_for.append((scheme, model, gpus, tokens, gpu, shared, recompute, overlap))
        attention = tokens / 1024 * (3 if recompute else 1)
        talks = 0.0 if shared is None or not overlap else 4 * tokens / 1024
        return Iteration(attention, 2 * tokens / 1024, talks)

    monkeypatch.setattr(runs, "iterated", iterated)
    return asked_for


def test_an_iteration_is_the_sum_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Iteration(3.0, 5.0, 11.0).seconds == 19.0
    asked_for = iterations(monkeypatch)
    row = runs.iteration(of(), "Megatron-LM", "LLaMA-7B", 8, 3, True)
    assert asked_for == [("Megatron-LM", "LLaMA-7B", 8, 3072, A100.name, True, False, True)]
    assert row["computed"] == 3 * (1 + 2 + 4)
    assert row["parts"] == "attention 3.00 s, weights 6.00 s, collectives 12.00 s"
    monkeypatch.setattr(runs, "iterated", lambda *_: Iteration(1.0, 2.0, 0.0))
    silent = runs.iteration(of(), "DistFlashAttn", "LLaMA-7B", 8, 3, True)
    assert silent["parts"] == "attention 1.00 s, weights 2.00 s"


def test_speed_ups_of_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other scheme computes attention again: 3 + 2 + 4 over 1 + 2 + 4 seconds a thousand tokens."""
    asked_for = iterations(monkeypatch)
    row = runs.iteration_speed_up(of(), "Megatron-LM", "LLaMA-7B", 8, 2, False, recompute=True)
    assert (row["slow"], row["fast"]) == (18.0, 14.0)
    assert row["computed"] == pytest.approx(9 / 7)
    assert [(a[0], a[3], a[6]) for a in asked_for] == [
        ("Megatron-LM", 2048, True),
        ("DistFlashAttn", 2048, False),
    ]


def test_what_communication_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 s of it to 3 s of the rest are 133 %."""
    asked_for = iterations(monkeypatch)
    row = runs.communication_share(of(), "LLaMA-7B", 16, 2, True, True)
    assert (row["ideal"], row["took"]) == (6.0, 14.0)
    assert row["computed"] == pytest.approx(400 / 3)
    assert [(a[3], a[5], a[7]) for a in asked_for] == [(2048, None, True), (2048, True, True)]
    hidden = runs.communication_share(of(), "LLaMA-7B", 16, 2, True, False)
    assert hidden["computed"] == 0.0


@pytest.mark.parametrize(("recompute", "forwards"), [(False, 1), (True, 2)])
def test_distflashattn_runs_each_pass_of_its_layers(
    recompute: bool, forwards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 layers of a forward of 3 s, twice where it is computed again, and a backward of 7 s."""
    overlaps: list[bool] = []

    def build(name: str, problem: Any, gpus: int, *, backward: bool) -> bool:
        assert (name, gpus) == ("balanced", 8)
        return backward

    def simulate(plan: bool, *_: Any, overlap: bool, merged: Any) -> Any:
        overlaps.append(overlap)
        return SimpleNamespace(total_s=7.0 if plan else 3.0)

    monkeypatch.setattr(runs, "build", build)
    monkeypatch.setattr(runs, "simulate", simulate)
    took = runs.iterated.__wrapped__(
        "DistFlashAttn", "LLaMA-7B", 8, 8192, A100.name, None, recompute, False
    )
    assert took.attention_s == 32 * (forwards * 3 + 7)
    assert took.communication_s == 0.0
    assert overlaps == [False, False]
    # Four forwards' worth of products, on 8 GPUs, at the rate of products.
    flops = runs.linear_flops(32, 32, 8192, 4)
    assert took.linear_s == pytest.approx(flops / 8 / A100.product_flops("fp16"))


def test_memory_of_parameters() -> None:
    """16 bytes each of 32 layers of 4 x 4096^2 + 3 x 4096 x 11008 weights, and of two tables of 32,000 rows, shared out."""
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 2 * 32000 * 4096
    assert runs.training_bytes("LLaMA-7B", 0, 8) == 16 * weights / 8


def test_a_sequence_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 GB are there; 4 are fixed, and 2 more go to each thousand tokens: 8 thousand fit."""
    monkeypatch.setattr(
        runs, "training_bytes", lambda model, tokens, gpus: 4e9 + 2e9 * tokens / 1024
    )
    memory: Any = SimpleNamespace(gpu=SimpleNamespace(need_memory_bytes=lambda: 20e9))
    row = runs.sequence_that_fits(memory, "LLaMA-7B", 8, 3)
    assert row == pytest.approx({"computed": 8.0, "used": 10.0, "budget": 20.0})


def test_a_chunk_that_hides_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 c^2 d operations a chunk against 4 c d bytes of K and V in 16 bits: c operations a byte."""
    port = SimpleNamespace(bandwidth_bytes_per_s=2e9)
    monkeypatch.setattr(runs, "load_link", lambda link, gpu: port)
    rate: Any = SimpleNamespace(gpu=SimpleNamespace(tensor_flops=lambda kind: 6e12))
    row = runs.chunk_that_hides(rate, "a link")
    assert row == pytest.approx({"computed": 3.0, "tflops": 6.0, "port": 2.0})


# --- published speeds ---


def point(**fields: Any) -> Point:
    usual_fields: dict[str, Any] = {
        "source": "a paper",
        "gpu": "h100-sxm",
        "kernel": "fa3",
        "dtype": "fp16",
        "head_dim": 128,
        "mask": "none",
        "passes": "fwd",
        "seq": 2048,
        "tflops": 500.0,
    }
    return Point(**(usual_fields | fields))


@pytest.mark.parametrize(("seq", "batch"), [(512, 32), (16384, 1), (32768, 1)])
def test_papers_fix_tokens_and_width(seq: int, batch: int) -> None:
    """16,384 tokens in all, 2,048 columns over all heads; one sequence where it is longer."""
    assert (published.TOKENS, published.WIDTH) == (16_384, 2_048)
    problem = point(seq=seq, head_dim=64).problem
    assert (problem.batch, problem.heads, problem.seq_q) == (batch, 32, seq)
    assert point(head_dim=256).problem.heads == 8


@pytest.mark.parametrize(("passes", "factor"), [("fwd", 1.0), ("bwd", 2.5), ("fwd+bwd", 3.5)])
@pytest.mark.parametrize(("mask", "share"), [("none", 1.0), ("causal", 0.5)])
def test_operations_as_papers_count_them(
    passes: str, factor: float, mask: str, share: float
) -> None:
    """4 N^2 d operations of 16 heads and 8 sequences of 2,048 tokens."""
    counted = point(passes=passes, mask=mask).counted_flops
    assert counted == 4 * 2048**2 * 128 * 16 * 8 * factor * share
    took: Any = SimpleNamespace(time=SimpleNamespace(total_s=2.0))
    assert point(passes=passes, mask=mask).speed(took) == counted / 2 / 1e12
    problem = point(passes=passes, mask=mask).problem
    half_a_second: Any = SimpleNamespace(problem=problem, time=0.5)
    assert published.speed_as_papers_count(half_a_second) == {"computed": counted / 0.5 / 1e12}


@pytest.mark.parametrize(
    ("fields", "fitted"),
    [
        ({}, True),
        ({"seq": 512}, True),
        ({"seq": 1024}, False),
        ({"kernel": "fa2"}, False),
        ({"dtype": "bf16"}, False),
        ({"passes": "bwd"}, False),
    ],
)
def test_points_on_which_constants_were_fitted(fields: dict[str, Any], fitted: bool) -> None:
    assert point(**fields).fitted is fitted


@pytest.mark.parametrize(
    ("speed", "fields", "note"),
    [
        (500.0, {}, "constants were fitted on this point among others"),
        (500.0, {"seq": 1024}, ""),
        (440.0, {}, "of a type"),  # more than a tenth off: the first reason that there is
        (560.0, {}, "of a type"),
        (440.0, {"dtype": "bf16", "passes": "bwd"}, "of a pass"),
        (440.0, {"dtype": "bf16"}, "of a kernel"),
        (440.0, {"kernel": "fa2"}, ""),
        (451.0, {"kernel": "fa2", "seq": 1024}, ""),
        (549.0, {"dtype": "bf16"}, ""),
    ],
)
def test_points_that_are_a_tenth_off_say_why(
    speed: float, fields: dict[str, Any], note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = {"fa3 fp16": "of a type", "fa3 bwd": "of a pass", "fa3": "of a kernel"}
    monkeypatch.setattr(published, "predicted_speed", lambda point: speed)
    row = published.published_speed(point(**fields), why)
    assert (row["computed"], row["note"]) == (speed, note)
    flops = point(**fields).counted_flops
    assert row["gflops"] == pytest.approx(flops / 1e9)
    assert row["took"] == pytest.approx(flops / (speed * 1e12) * 1e6)  # microseconds


def test_the_fastest_point_of_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [
        point(seq=512, tflops=1),
        point(seq=1024, tflops=3),
        point(seq=2048, tflops=2),
        point(dtype="bf16", tflops=9),
        point(passes="bwd", tflops=9),
        point(kernel="fa2", tflops=9),
    ]
    monkeypatch.setattr(published, "points", lambda: some)
    monkeypatch.setattr(published, "predicted_speed", lambda point: 100 * point.tflops)
    row = published.fastest_point("fp16")
    assert row == {"computed": 300, "speed": 300, "point": some[1]}
    assert published.fastest_point("fp16", peak_tflops=400.0)["computed"] == 75.0


def test_the_first_length_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held grows by a MiB a token; memory holds 64 MiB, and so 64 tokens."""

    class Held:
        def __init__(self, keys: Any) -> None:
            self.problem = SimpleNamespace(seq_q=keys["seq_q"])
            self.held = Amount(keys["seq_q"] << 20)

    monkeypatch.setattr(published, "Side", Held)
    memory: Any = SimpleNamespace(keys={}, gpu=SimpleNamespace(need_memory_bytes=lambda: 64 << 20))
    row = published.first_that_does_not_fit(memory, [32, 64, 65, 128])
    assert row == {"computed": 65, "needed": 65, "capacity": 64}


# --- sides and grids ---


def test_amounts_have_units() -> None:
    amount = Amount(3 << 20)
    assert (amount.MiB, amount.KiB) == (3.0, 3072.0)
    assert Amount(0.5).ms == 500.0
    assert Amount(0.5).percent == 50.0
    assert side.scaled(7.0, "tokens") == 7.0
    with pytest.raises(AttributeError, match="furlongs"):
        _ = amount.furlongs
    with pytest.raises(AttributeError, match="weight"):
        _ = Side({}).weight


@pytest.mark.parametrize(("seq", "blocks"), [(256, 2), (257, 3), (1, 1)])
def test_query_blocks_of_a_side(seq: int, blocks: int) -> None:
    keys = {"kernel": "fa2", "gpu": "a100", "head_dim": 64, "seq_q": seq, "seq_k": 512, "splits": 1}
    assert Side(keys | {"tile": (128, 64)}).query_blocks == blocks


def cells(*bytes_of_base: int) -> tuple[training_grid.Cell, ...]:
    return tuple(
        training_grid.Cell(
            2048,
            training_grid.WIDTHS[n % len(training_grid.WIDTHS)],
            {"base": held, "flash": held // 2},
            {"time": 0.1 * (n + 1), "memory": 0.5},
        )
        for n, held in enumerate(bytes_of_base)
    )


def test_configurations_as_large_as_the_memory_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    capacity = load_profile(training_grid.GPU).need_memory_bytes()
    monkeypatch.setattr(
        training_grid, "grid", lambda reading: cells(capacity - 1, capacity, capacity + 1)
    )
    reading = training_grid.READINGS[0]
    monkeypatch.setattr(training_grid, "closest", lambda: reading)
    row = training_grid.training_saved(reading, "time", {"closest": "nearest"})
    assert (row["fit"], row["cells"], row["kind_note"]) == (2, 3, "nearest")
    assert row["computed"] == pytest.approx(15.0)  # of 10 and 20 %
    assert (row["least"], row["most"]) == pytest.approx((10.0, 30.0))
    assert row["trend"] == pytest.approx(20.0)
    for limit, fitting in ((capacity - 2, 0), (capacity, 2), (capacity + 1, 3)):
        counted = training_grid.configurations_that_fit(0, "base", limit)
        assert (counted["computed"], counted["cells"]) == (fitting, 3)
    assert training_grid.configurations_that_fit("closest", "flash", capacity)["computed"] == 3


@pytest.mark.parametrize(
    ("claimed", "computed", "verdict"),
    [
        (100.0, 100.0, "agrees"),
        (100.0, 100.99, "agrees"),  # within 1 %
        (100.0, 99.01, "agrees"),
        (100.0, 101.0, "agrees"),
        (100.0, 101.01, "near"),
        (100.0, 98.99, "near"),
        (100.0, 119.9, "near"),  # within 20 %
        (100.0, 80.1, "near"),
        (100.0, 120.0, "near"),
        (100.0, 120.1, "off"),
        (100.0, 79.9, "off"),
        (100.0, -100.0, "off"),
    ],
)
def test_verdicts_on_claims(claimed: float, computed: float, verdict: str) -> None:
    from iosim.evidence.reproduce import Row

    assert Row("A", "claim", claimed, computed, "s", "").verdict.name.lower() == verdict


def test_a_mistake_that_is_none_is_null() -> None:
    from iosim.evidence.reproduce import Row

    row = Row("A", "claim", 1.0, 1.0, "s", "", "", "")
    assert row.to_dict()["mistake"] is None
    assert Row("A", "claim", 1.0, 1.0, "s", "", "", "why").to_dict()["mistake"] == "why"


@pytest.mark.parametrize(("least", "word"), [(0.66, "holds"), (0.64, "does not hold")])
def test_a_claim_of_the_least_time_saved(
    least: float, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paper says more than 65 % of the time in every configuration."""
    saved = [
        training_grid.Cell(2048, width, {"base": 2, "flash": 1}, {"time": t, "memory": 0.5})
        for width, t in zip(training_grid.WIDTHS, (least, 0.7), strict=False)
    ]
    monkeypatch.setattr(training_grid, "WIDTHS", training_grid.WIDTHS[:2])
    monkeypatch.setattr(training_grid, "grid", lambda reading: saved)
    reading = training_grid.READINGS[0]
    monkeypatch.setattr(training_grid, "closest", lambda: reading)
    assert training_grid.training_saved(reading, "time")["holds"].startswith(word)
