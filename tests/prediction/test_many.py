"""Many predictions: those of `predict`, in the order asked for, on several threads, equal replays played once."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from scripts import hears_ctrl_c

import iosim
from iosim.base import progress as progress_module
from iosim.base.progress import Stopped, cores, go_on, is_worker, working
from iosim.prediction import replays as engine_room
from iosim.prediction.many import AHEAD, Request, predict_many, try_all, try_many
from iosim.prediction.replays import Memory


def problem(tokens: int) -> iosim.AttentionProblem:
    return iosim.AttentionProblem(heads=2, seq_q=tokens, head_dim=64, mask="causal")


REQUESTS = [
    Request(problem(tokens), kernel, gpu)
    for gpu in ("t4", "a100", "h200")
    for kernel in ("naive", "cutlass", "fa2")
    for tokens in (100, 1000)
]


@pytest.mark.parametrize("jobs", [1, 3])
def test_they_are_those_of_predict_in_order(jobs: int) -> None:
    outcomes = list(try_many(REQUESTS, jobs))
    for request, outcome in zip(REQUESTS, outcomes, strict=True):
        if request.profile == "t4" and request.kernel == "fa2":
            assert isinstance(outcome, iosim.InputError)
            assert "fa2" in str(outcome)
        else:
            alone = iosim.predict(request.problem, request.kernel, request.profile)
            assert isinstance(outcome, iosim.Prediction)
            assert outcome.to_dict() == alone.to_dict()


def test_all_at_once_keeps_the_order_asked_for() -> None:
    requests = [Request(problem(n), "cutlass", "a100") for n in (100, 900, 300, 700)]
    outcomes = try_all(requests, 2)
    assert [o.problem.seq_q for o in outcomes if isinstance(o, iosim.Prediction)] == [
        100,
        900,
        300,
        700,
    ]


def test_an_error_comes_at_its_turn() -> None:
    results = predict_many(
        [Request(problem(100), "cutlass", "t4"), Request(problem(100), "fa2", "t4")], jobs=2
    )
    assert next(results).kernel.name == "cutlass"
    with pytest.raises(iosim.InputError, match="fa2"):
        next(results)


@pytest.mark.parametrize("jobs", [1, 2])
def test_requests_without_end_are_taken_as_needed(jobs: int) -> None:
    taken = itertools.count()

    def endless() -> Iterator[Request]:
        for n in taken:
            yield Request(problem(64 + n), "cutlass", "a100", method="capacity")

    tokens = [p.problem.seq_q for p in itertools.islice(predict_many(endless(), jobs), 5)]
    assert tokens == [64, 65, 66, 67, 68]
    assert next(taken) <= 5 + jobs * AHEAD + 2


@pytest.mark.parametrize("jobs", [0, -1])
def test_fewer_than_one_at_once_is_refused(jobs: int) -> None:
    with pytest.raises(iosim.InputError, match=f"jobs {jobs} is out of range"):
        try_many(REQUESTS, jobs)


def test_equal_replays_are_played_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's choice on an A100 is FlashAttention-2: one kernel under two names; and one GPU under two."""
    gpus: list[str] = []
    play = engine_room.replay
    monkeypatch.setattr(
        engine_room, "replay", lambda inputs, *rest: gpus.append(inputs.gpu) or play(inputs, *rest)
    )
    again = [
        Request(problem(1000), kernel, gpu)
        for kernel in ("fa2", "sdpa")
        for gpu in ("a100", "a100-sxm-80gb")
    ]
    first, *others = (
        p.traffic for p in predict_many(again, jobs=2) if isinstance(p, iosim.Prediction)
    )
    assert all(other == first for other in others)
    assert len(gpus) == 1


def test_options_reach_predict() -> None:
    warm = Request(
        problem(500), "fa2", "a100", iosim.Overrides(direction="ascending"), l2_start="warm"
    )
    (result,) = predict_many([warm], 1)
    alone = iosim.predict(
        problem(500),
        "fa2",
        "a100",
        l2_start="warm",
        overrides=iosim.Overrides(direction="ascending"),
    )
    assert result.to_dict() == alone.to_dict()


def test_a_chain_in_place_of_the_kernels() -> None:
    alone = iosim.predict(problem(500), "naive", "a100")
    first = type(alone.chain)(alone.chain.tensors, alone.chain.launches[:1])
    (result,) = predict_many([Request(problem(500), alone.kernel, alone.profile, chain=first)], 1)
    assert {row.launch for row in result.traffic} == {alone.chain.launches[0].name}


def test_progress_counts_predictions_that_are_there() -> None:
    seen: list[int] = []

    def watch(items: Any, /) -> Iterator[Any]:
        assert items.__length_hint__() == 3
        for item in items:
            seen.append(item.problem.seq_q)
            yield item

    requests = [Request(problem(n), "cutlass", "a100") for n in (100, 200, 300)]
    assert [p.problem.seq_q for p in predict_many(requests, 2, watch)] == seen == [100, 200, 300]


def test_threads_show_no_bars(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress_module, "AFTER_S", 0.0)
    list(predict_many(REQUESTS[:2], jobs=2))
    assert capsys.readouterr().err == ""


def test_whoever_stops_reading_stops_the_engine() -> None:
    """64k tokens of naive attention take ten seconds; the reader leaves after the first of three."""
    long = iosim.AttentionProblem(heads=8, seq_q=65536, head_dim=64)
    requests = [
        Request(problem(64), "cutlass", "a100"),
        *(Request(long, "naive", gpu, method="replay") for gpu in ("a100", "h200")),
    ]
    results = predict_many(requests, 2)
    next(results)
    begin = time.process_time()  # of all threads, and nobody else's
    results.close()  # type: ignore[attr-defined]
    assert time.process_time() - begin < 5
    assert not [t for t in threading.enumerate() if t.name.startswith("iosim")]


CODE = """
import iosim, sys
from iosim.prediction.many import Request, predict_many
long = iosim.AttentionProblem(heads=8, seq_q=65536, head_dim=64)
print("begun", flush=True)
list(predict_many((Request(long, "naive", gpu, method="replay") for gpu in ("a100", "h200")), 2))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of another kind")
def test_ctrl_c_ends_all_threads() -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", CODE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hears_ctrl_c,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "begun\n"
    time.sleep(1.0)
    worker.send_signal(signal.SIGINT)
    begin = time.monotonic()
    _, err = worker.communicate(timeout=30)
    assert time.monotonic() - begin < 10
    assert "KeyboardInterrupt" in err
    assert worker.returncode != 0


def test_a_thread_that_works_for_another_hears_that_it_is_over() -> None:
    stop = threading.Event()
    go_on()
    with working(stop):
        assert is_worker()
        go_on()
        stop.set()
        with pytest.raises(Stopped):
            go_on()
    assert not is_worker()
    go_on()


def test_replays_side_by_side_share_memory() -> None:
    memory, at_once, most = Memory(100), 0, 0
    lock = threading.Lock()

    def one(needed: int) -> None:
        nonlocal at_once, most
        with memory.taken(needed):
            with lock:
                at_once += needed
                most = max(most, at_once)
            time.sleep(0.01)
            with lock:
                at_once -= needed

    threads = [threading.Thread(target=one, args=(needed,)) for needed in (40, 50, 60, 70, 30, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert at_once == 0
    assert most == 500  # alone, as more than all of it


def test_cores_are_those_of_this_process() -> None:
    assert 1 <= cores() <= (__import__("os").cpu_count() or 1)
