"""What holds for a whole run: how many examples are drawn, and which tests share a worker.

`python -m pytest -q -n auto -m "not slow"` is quick: a 24th of each property's examples. Without that mark
expression, also for a single file, every example is drawn.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import effort
import pytest
from hypothesis import settings

os.environ["IOSIM_CACHE"] = "off"  # no test finds or leaves anything in the user's cache
os.environ["IOSIM_PROFILES"] = os.devnull  # nor the user's own profiles
os.environ["IOSIM_CONFIG"] = os.devnull  # nor defaults of their own
os.environ.pop("IOSIM_GPU", None)
CONTROLS = "PYTEST_XDIST_WORKER" not in os.environ
if CONTROLS:
    os.environ[effort.KEPT_REPLAYS] = tempfile.mkdtemp(prefix="iosim-tests-")
os.environ.pop(
    "COLUMNS", None
)  # output is as wide as it comes, whatever terminal the tests are started from
QUICK = "not slow"
TOGETHER = {
    f"tests/evidence/{name}.py": "reproduce"
    for name in (
        "test_claims_doc",
        "reproduce/test_paper",
        "reproduce/test_training_grid",
        "reproduce/test_chunk_schedules",
        "test_reproduce_f",
    )
} | {
    f"tests/house/{name}.py": "imports"
    for name in ("test_architecture_doc", "test_budget", "test_layers")
}
"""Files of which each needs what takes long to compute, by what that is."""
FIRST = (
    "tests/house/test_mutants.py",
    "reproduce",
    "tests/evidence/test_others.py",
    "tests/house/test_readme.py",
    "tests/house/test_docs.py",
    "tests/house/test_examples.py",
    "tests/laws/test_one_method.py",
    "tests/commands/test_recorded_studies.py",
    "tests/prediction/test_ranges.py",
    "tests/evidence/validate/test_summary.py",
)
"""Files of few tests that take long: they start first, so that no worker is left with one at the end."""


def pytest_configure(config: pytest.Config) -> None:
    effort.quick = config.option.markexpr.strip() == QUICK
    settings.register_profile("here", max_examples=effort.examples(effort.DEFAULT_EXAMPLES))
    settings.load_profile("here")
    from iosim.base import progress

    progress.LINE_S = float("inf")  # on a busy machine all may take ten seconds


def pytest_collection_finish() -> None:
    """What is loaded by now stays: garbage is looked for among the rest alone, and seldom."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def pytest_sessionfinish() -> None:
    """Nor is it looked for once all is done, as pytest does five times over."""
    gc.freeze()


def pytest_unconfigure() -> None:
    if CONTROLS:
        shutil.rmtree(os.environ.pop(effort.KEPT_REPLAYS, ""), ignore_errors=True)


@pytest.fixture
def kept_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long replays are kept for the tests of this run that print what users see, as they are for users."""
    monkeypatch.setenv("IOSIM_CACHE", os.environ[effort.KEPT_REPLAYS])


PLAYED: dict[object, Any] = {}


@pytest.fixture(scope="module")
def replays_once() -> Iterator[None]:
    """Equal replays are played once a worker, and equal tiles tried once, for files that test what is made of them and
    leave the engine as it is. That the engine plays the same again, others hold."""
    from iosim.base.digest import digest
    from iosim.prediction import replays
    from iosim.studies.tiles import pick

    play = replays.replay

    def once(inputs: Any) -> Any:
        key = digest(inputs)
        if key not in PLAYED:
            PLAYED[key] = play(inputs)
        return PLAYED[key]

    attempt = pick._try

    def tried_once(tile: Any, problem: Any, gpu: Any, unit: Any, report: Any) -> Any:
        if report is None and pick.has_builds(problem, unit):
            report = pick.build_report(problem, tile, gpu)
        key = tile, problem, gpu, unit, report
        if key not in PLAYED:
            PLAYED[key] = attempt(*key)
        return PLAYED[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(replays, "replay", once)
        patched.setattr(pick, "_try", tried_once)
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """One worker a file, so that what a file computes once is computed once."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return TOGETHER.get(file, file)

        def _assign_work_unit(self, node: Any) -> None:
            waiting = next((file for file in FIRST if file in self.workqueue), None)
            if waiting:
                self.workqueue.move_to_end(waiting, last=False)
            super()._assign_work_unit(node)

    return Files(config, log)
