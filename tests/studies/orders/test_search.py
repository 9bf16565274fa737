"""The search of orders: it predicts what predict does, and finds as good an order with little to spend."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from orders_asked import CAUSAL, FILE, H200

from iosim.base.words import DEFAULT
from iosim.catalog.libraries import resolve
from iosim.kernel.schedule import Scheduler
from iosim.prediction.predictor import predict
from iosim.studies.orders import OrderRanking, search
from iosim.studies.orders.search import _Search
from iosim.studies.requests import OrdersRequest

pytestmark = pytest.mark.usefixtures("replays_once")


def test_a_ranking_predicts_what_predict_does(ranking: OrderRanking) -> None:
    best = ranking.best
    assert best.hbm_bytes <= ranking.own.hbm_bytes
    assert best.time_s <= 1.01 * min(e.time_s for e in ranking.orders)
    kernel = resolve(FILE, CAUSAL, H200)
    own_prediction = predict(CAUSAL, kernel, H200)
    (listed,) = (e for e in ranking.orders if e.is_own)
    assert (listed.hbm_bytes, listed.time_s) == (
        own_prediction.total("hbm"),
        own_prediction.time.total_s,
    )
    assert ranking.own.hbm_bytes == listed.hbm_bytes


def test_the_front_has_nothing_better_in_both(ranking: OrderRanking) -> None:
    assert ranking.pareto
    for e in ranking.orders:
        beaten = any(
            o.time_s <= e.time_s
            and o.hbm_bytes <= e.hbm_bytes
            and (o.time_s, o.hbm_bytes) != (e.time_s, e.hbm_bytes)
            for o in ranking.orders
        )
        assert e.on_front != beaten or not e.on_front


@pytest.mark.slow
def test_a_search_with_little_to_spend_finds_as_good_an_order(
    ranking: OrderRanking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The likeliest whole, the others in coarse steps or left out where another beats them."""
    monkeypatch.setattr(search, "ALL_ACCESSES", 0)
    for budget in (60_000, 0):
        monkeypatch.setattr(search, "COARSE_ACCESSES", budget)
        monkeypatch.setattr(search, "LEAST_COARSE", 500)
        pruned = search.rank_orders(OrdersRequest(problems=[CAUSAL], kernel=FILE, gpu=H200))
        assert pruned.best.is_whole
        assert pruned.best.time_s <= 1.02 * ranking.best.time_s
        assert pruned.best.hbm_bytes <= 1.1 * ranking.best.hbm_bytes
        assert any(not e.is_whole for e in pruned.orders) == bool(budget)
        assert any("coarse" in note for note in pruned.notes) == bool(budget)
        assert bool(pruned.left_out) == (not budget)
        assert any(e.is_own for e in pruned.orders)


def test_several_problems_have_one_order() -> None:
    two = [CAUSAL.with_(seq_q=2048, seq_k=2048), CAUSAL.with_(seq_q=4096, seq_k=4096)]
    fixed = {"scheduler": "static", "direction": "ascending"}
    ranking = search.rank_orders(
        OrdersRequest(problems=two, kernel=FILE, gpu=H200, weights=[3, 1], **fixed)
    )
    best = ranking.best
    assert len(best.parts) == 2
    assert best.time_s == pytest.approx(3 * best.parts[0].time_s + best.parts[1].time_s)
    assert {e.choice.scheduler for e in ranking.orders} == {Scheduler.STATIC}
    assert any(e.choice.section_bytes for e in ranking.orders)


def test_blackwells_own_order_is_an_assumption_that_is_told() -> None:
    problem = CAUSAL.with_(seq_q=512, seq_k=512, heads=2, kv_heads=2)
    request = OrdersRequest(problems=[problem], kernel=DEFAULT, gpu="b200", direction="descending")
    ranking = search.rank_orders(request)
    assert ranking.kernel == "fa4"
    assert any("cluster launch control" in note for note in ranking.notes)


@pytest.mark.parametrize(
    ("least_s", "times_compulsory", "is_beaten"),
    [
        (1.0, 1.0, True),
        (0.9901, 1.02, True),
        (0.9899, 1.0, False),
        (1.0, 1.021, False),
        (2.0, 1.0, True),
    ],
)
def test_what_could_not_be_faster_is_left_out(
    least_s: float, times_compulsory: float, is_beaten: bool
) -> None:
    """Another order was replayed and takes a second: one that takes 1 / 1.01 = 0.990 s at least is as slow, where the
    other reads 1.02 times the compulsory bytes at most."""
    words = SimpleNamespace(words="other")
    replayed = SimpleNamespace(time_s=1.0, times_compulsory=times_compulsory, choice=words)
    search_state = SimpleNamespace(entries={"other": replayed}, left_out=[])
    candidate = SimpleNamespace(choice="this", least_s=least_s)
    assert _Search._is_beaten(search_state, candidate) == is_beaten  # type: ignore[arg-type]
    assert [choice for choice, _ in search_state.left_out] == ["this"] * is_beaten
