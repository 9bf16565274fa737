"""A sweep on a Dask cluster that is played: how many parts are ahead, and what is said once workers or scheduler go.

The cluster computes in this process, and its clock is a number that a sleep moves on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from swept import GRID

from iosim import sweep
from iosim.base.errors import InputError
from iosim.studies.sweep import run

ADDRESS = "tcp://somewhere:8786"


@dataclass
class Clock:
    """Seconds since the start; a sleep takes one second, so that a look is taken at each LOOK_S of them."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _: float) -> None:
        self.now += 1.0


@dataclass
class Future:
    work: Callable[[], Any]
    released: bool = False

    def result(self) -> Any:
        return self.work()

    def release(self) -> None:
        self.released = True


@dataclass
class Cluster:
    """A scheduler and its workers.

    Attributes:
        threads: threads of each worker at a look, by its number; of the last one from there on.
        ready_after_s: when its first part is done.
        most_ahead: parts that were sent and not yet taken, at most.
    """

    clock: Clock
    threads: tuple[tuple[int, ...] | None, ...] = ((2, 1),)
    ready_after_s: float = 0.0
    broken: BaseException | None = None
    looks: list[float] = field(default_factory=list)
    futures: list[Future] = field(default_factory=list)
    waiting: list[Future] = field(default_factory=list)
    most_ahead: int = 0
    closed: bool = False
    status: str = "running"
    loop: None = None

    # distributed.Client's part

    def nthreads(self) -> dict[str, int]:
        now = self.threads[min(len(self.looks), len(self.threads) - 1)]
        self.looks.append(self.clock.now)
        if now is None:
            raise OSError("no scheduler")
        return {f"worker {n}": threads for n, threads in enumerate(now)}

    def submit(self, function: Callable[..., Any], *args: Any, pure: bool) -> Future:
        assert not pure, "the same part twice is two parts"
        broken = self.broken

        def work() -> Any:
            if broken is not None:
                raise broken
            return function(*args)

        self.futures.append(Future(work))
        return self.futures[-1]

    def close(self) -> None:
        self.closed = True

    # what distributed.as_completed gives

    def add(self, future: Future) -> None:
        self.waiting.append(future)
        self.most_ahead = max(self.most_ahead, len(self.waiting))

    def is_empty(self) -> bool:
        return not self.waiting

    def has_ready(self) -> bool:
        return self.clock.now >= self.ready_after_s

    def __next__(self) -> Future:
        return self.waiting.pop()  # the newest first: parts come back in any order


Played = Callable[..., Cluster]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    """Makes a cluster and puts it where a sweep finds one."""

    def make(**settings: Any) -> Cluster:
        clock = Clock()
        cluster = Cluster(clock, **settings)

        def client(address: str, **_: Any) -> Cluster:
            if address != ADDRESS:
                raise OSError("Timed out\n trying to connect")
            return cluster

        module = SimpleNamespace(Client=client, as_completed=lambda loop: cluster)
        monkeypatch.setitem(sys.modules, "distributed", module)
        monkeypatch.setattr(run, "time", clock)
        return cluster

    return make


def refusal(**settings: Any) -> str:
    with pytest.raises(InputError) as error:
        sweep(**{**GRID, "dask": ADDRESS, **settings})
    return str(error.value)


def test_rows_are_those_of_one_process_whatever_comes_back_first(
    played: Played, tmp_path: Path
) -> None:
    cluster = played()
    sweep(**GRID, out=tmp_path / "there.csv", dask=ADDRESS)
    sweep(**GRID, out=tmp_path / "here.csv", jobs=1)
    assert (tmp_path / "there.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()
    # Three parts for each of three threads are sent, and one more for each that comes back.
    assert len(cluster.futures) > 9
    assert cluster.most_ahead == 9
    assert all(future.released for future in cluster.futures)
    assert cluster.closed


def test_few_parts_are_all_sent(played: Played) -> None:
    cluster = played(threads=((64,),))
    sweep(**GRID, dask=ADDRESS)
    assert cluster.most_ahead == len(cluster.futures)


def test_a_cluster_that_is_not_there(played: Played) -> None:
    played()
    assert refusal(dask="tcp://nowhere:1") == (
        "dask 'tcp://nowhere:1' is not reached: Timed out trying to connect; "
        "accepted: the address of a scheduler, such as tcp://host:8786"
    )


def test_a_cluster_without_workers(played: Played) -> None:
    cluster = played(threads=((),))
    assert "has no workers; accepted: a cluster with at least one" in refusal()
    assert cluster.closed


@pytest.mark.parametrize(
    ("threads", "status"), [(((1,), None), "running"), (((1,),), "closed")], ids=["asked", "known"]
)
def test_a_scheduler_that_goes(
    played: Played, threads: tuple[tuple[int, ...] | None, ...], status: str
) -> None:
    cluster = played(threads=threads, ready_after_s=1e9)
    cluster.status = status
    assert f"the scheduler of dask '{ADDRESS}' is gone; accepted: the same" in refusal()
    assert cluster.clock.now == run.LOOK_S  # at its first look


def test_workers_that_go_are_waited_for_and_then_given_up(
    played: Played, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster = played(threads=((1,), (1,), ()), ready_after_s=1e9)
    assert f"dask '{ADDRESS}' has no worker left; accepted: the same" in refusal()
    # Looks after 5 s, 10 s and so on: the second finds none, and 30 s later there is none still.
    assert cluster.looks == [0, 5, 10, 15, 20, 25, 30, 35, 40]
    errors = capfd.readouterr().err
    assert errors.count("has no worker left; waiting 30 s for one") == 1


def test_workers_that_come_back_in_time(played: Played, capfd: pytest.CaptureFixture[str]) -> None:
    """Gone at 5 s and back at 30 s, gone again at 35 s: the wait begins anew, and the part is done at 62 s."""
    gone, back = (), (1,)
    looks = (back, gone, gone, gone, gone, gone, back, gone)
    cluster = played(threads=looks, ready_after_s=62.0)
    sweep(**GRID, dask=ADDRESS)
    assert cluster.looks[-1] == 60
    assert capfd.readouterr().err.count("waiting 30 s for one") == 2


@pytest.mark.parametrize(
    ("broken", "refused_with"),
    [
        (CancelledError(), "the scheduler of dask '{}' is gone"),
        (ImportError("no module\nnamed iosim"), "no such iosim: no module named iosim; accepted"),
        (AttributeError(), "no such iosim: AttributeError; accepted: workers with iosim"),
    ],
    ids=["cancelled", "another package", "says nothing"],
)
def test_parts_that_fail(played: Played, broken: BaseException, refused_with: str) -> None:
    played(broken=broken)
    assert refused_with.format(ADDRESS) in refusal()
