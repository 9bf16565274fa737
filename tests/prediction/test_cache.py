"""Replays kept on disk: found again to the byte, only for the same inputs and the same engine, whatever befalls the
file."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import quick_first
from house import edges

import iosim
from iosim.base.data import cache_dir
from iosim.base.digest import digest
from iosim.commands.cli import main
from iosim.prediction import cache as module
from iosim.prediction import replays as engine_room
from iosim.prediction import replays as replays_module
from iosim.prediction.cache import ReplayCache, replay_cache
from iosim.prediction.call import Call
from iosim.prediction.predictor import planned
from iosim.prediction.replays import Replays, tile_accesses
from iosim.readers.replay import build
from iosim.readers.replay.l2 import model
from iosim.readers.replay.play import Play
from iosim.readers.replay.replay import Inputs
from iosim.studies.report import CaseGrid
from iosim.studies.report import build as build_report

CALL = planned(
    iosim.AttentionProblem(heads=4, seq_q=700, head_dim=64, mask="causal"), "naive", "t4"
)
PROBLEMS = {
    "whole": (
        "fa2",
        "h200",
        iosim.AttentionProblem(heads=2, seq_q=3000, head_dim=128, mask="causal"),
        None,
    ),
    "chain": ("naive", "a100", iosim.AttentionProblem(heads=4, seq_q=1000, head_dim=64), None),
    "warm": ("cudnn", "h200", iosim.AttentionProblem(heads=2, seq_q=1000, head_dim=64), None),
    "coarse": (
        "fa2",
        "l4",
        iosim.AttentionProblem(heads=1, seq_q=131072, head_dim=128, mask="causal"),
        "sampled",
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, for replays of any length."""
    monkeypatch.setenv("IOSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(replays_module, "KEPT_ACCESSES", 0)
    return tmp_path / "cache"


@pytest.fixture
def plays(monkeypatch: pytest.MonkeyPatch) -> list[Inputs]:
    """What the engine was asked to play."""
    inputs_played: list[Inputs] = []
    play = engine_room.replay
    monkeypatch.setattr(
        engine_room,
        "replay",
        lambda inputs, *rest: inputs_played.append(inputs) or play(inputs, *rest),
    )
    return inputs_played


def predicted(name: str) -> iosim.Prediction:
    kernel, gpu, problem, method = PROBLEMS[name]
    return iosim.predict(
        problem, kernel, gpu, method=method, l2_start="warm" if name == "warm" else "cold"
    )


@pytest.mark.parametrize("name", quick_first(PROBLEMS, 3))
def test_a_kept_prediction_is_the_fresh_one(
    name: str, folder: Path, plays: list[Inputs], monkeypatch: Any
) -> None:
    first = predicted(name)
    assert len(plays) == 1
    again = predicted(name)
    assert len(plays) == 1
    monkeypatch.setenv("IOSIM_CACHE", "off")
    fresh = predicted(name)
    assert len(plays) == 2
    for other in (first, again):
        assert other.to_dict() == fresh.to_dict()
        assert other.to_text() == fresh.to_text()
        assert digest(other.replay) == digest(fresh.replay)


def test_windows_are_kept_without_loss(folder: Path) -> None:
    problem = iosim.AttentionProblem(heads=1, seq_q=32768, head_dim=64)
    call = planned(problem, "cutlass", "t4")
    low = call.replay(Play(part=True))
    windows = np.arange(12, dtype=np.int64)
    played = replace(
        low.launches[0],
        windows=module.Windows(
            windows, windows + 7, np.outer(windows, windows), np.outer(windows, windows + 1), 0.1
        ),
    )
    shorter = replace(low, launches=(played,))
    assert digest(module.from_plain(module.to_plain(shorter))) == digest(shorter)


def changed(value: Any) -> Any:
    """Another value of the same type, or None where there is none to make."""
    match value:
        case bool():
            return not value
        case Enum():
            return next((other for other in type(value) if other is not value), None)
        case int():
            return value + 1
        case float():
            return float(np.nextafter(value, 1e300))
        case str():
            return value + "x"
        case np.ndarray():
            return np.append(value, 1).astype(value.dtype)
        case None:
            return 3
    return None


def variants(value: Any) -> list[tuple[str, Any]]:
    """`value` with one number, name or entry changed, each with where that is; all of them."""
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.compare and field.init]
        parts = [(name, *part) for name in names for part in variants(getattr(value, name))]
        return [
            (f"{name}.{where}", replace(value, **{name: other})) for name, where, other in parts
        ]
    if isinstance(value, dict):
        return [
            (f"{k}.{where}", value | {k: other})
            for k, v in value.items()
            for where, other in variants(v)
        ]
    if isinstance(value, tuple):
        inner = [
            (f"{n}.{where}", (*value[:n], other, *value[n + 1 :]))
            for n, item in enumerate(value)
            for where, other in variants(item)
        ]
        return inner or [("more", (*value, 1))]
    other = changed(value)
    return [] if other is None else [("value", other)]


def test_every_input_is_part_of_the_key() -> None:
    inputs = CALL.replay_inputs()
    keys = {digest(inputs): "as it is"}
    tried = variants(
        {field.name: getattr(inputs, field.name) for field in fields(inputs) if field.compare}
    )
    assert len(tried) > 200
    for where, values in tried:
        key = digest([*values.items()])
        assert key not in keys, f"{where} is as {keys[key]}"
        keys[key] = where


def test_the_key_is_that_of_the_inputs_and_not_of_the_name() -> None:
    inputs = CALL.replay_inputs()
    assert digest(inputs) == digest(replace(inputs, gpu="another name"))
    assert digest(inputs) != digest(replace(inputs, play=Play(l2_start="warm")))
    assert digest(inputs) != digest(replace(inputs, tensors=dict(reversed(inputs.tensors.items()))))
    assert {field.name for field in fields(inputs) if not field.compare} == {"gpu"}


def test_nothing_else_reaches_the_engine() -> None:
    """A replay is a function of its inputs: it is handed nothing else but a trace."""
    assert list(engine_room.replay.__annotations__) == ["inputs", "trace", "return"]


@pytest.mark.parametrize("source", ["engine.c", "launch.h"])
def test_the_engines_sources_are_part_of_the_key(source: str, tmp_path: Path) -> None:
    for file in (*build.FOLDER.glob("*.c"), *build.FOLDER.glob("*.h")):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert build.mark(tmp_path) == build.mark()
    with (tmp_path / source).open("a") as file:
        file.write("\n")
    assert build.mark(tmp_path) != build.mark()


@pytest.mark.slow
def test_the_version_covers_every_module_that_a_replay_runs() -> None:
    """Those that it imports beside them make its inputs, which are part of the key themselves."""
    arrows = edges()
    reached, todo = set(), ["iosim.readers.replay.replay"]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += arrows[name]
    covered = {
        ".".join(("iosim", *path.relative_to(module.PACKAGE).with_suffix("").parts))
        for folder in module.SOURCES
        for path in (module.PACKAGE / folder).glob("*.py")
    }
    beside = {name for name in reached - covered if name.split(".")[1] not in ("base", "hardware")}
    assert beside <= {f"iosim.problem.{name}" for name in ("attention", "dtypes", "fields")}


@pytest.mark.parametrize("mark", ["mark", "NumPy"])
def test_another_version_misses(
    mark: str, folder: Path, plays: list[Inputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    predicted("chain")
    if mark == "mark":
        monkeypatch.setattr(build, "mark", lambda: b"another engine")
    else:
        monkeypatch.setattr(module.np, "__version__", "0.1")
    module.version.cache_clear()
    try:
        predicted("chain")
    finally:
        monkeypatch.undo()
        module.version.cache_clear()
    assert len(plays) == 2


def test_what_is_used_least_goes_first(tmp_path: Path) -> None:
    cache = ReplayCache(tmp_path / "x.sqlite3", "v", most_bytes=400_000)
    noise = np.random.default_rng(1)
    for n in range(100):
        cache.put(f"{n}", {"n": n, "noise": noise.bytes(5_000).hex()})
    entries = [n for n in range(100) if cache.get(f"{n}") is not None]
    assert entries == list(range(entries[0], 100))
    assert 20 < len(entries) < 90
    state = cache.state()
    assert state.bytes <= 450_000
    assert (state.results, state.current) == (len(entries), len(entries))


@pytest.mark.parametrize(
    ("age_s", "is_renewed"),
    [
        (0.0, False),
        (module.USED_AGAIN_S / 2, False),  # reading is free of writes for a day
        (2 * module.USED_AGAIN_S, True),
        (-module.USED_AGAIN_S, True),  # of a clock that was ahead
    ],
)
def test_the_time_of_last_use_is_renewed_once_a_day(
    age_s: float, is_renewed: bool, tmp_path: Path
) -> None:
    file = tmp_path / "x.sqlite3"
    cache = ReplayCache(file, "v")
    cache.put("a", {"n": 1})
    then = time.time() - age_s
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE replays SET used = ?", (then,))
    assert cache.get("a") == {"n": 1}
    with closing(sqlite3.connect(file)) as database:
        ((used,),) = database.execute("SELECT used FROM replays").fetchall()
    assert (used != then) is is_renewed


def test_results_of_other_versions_go_before_ones_of_this(tmp_path: Path) -> None:
    noise = np.random.default_rng(1)
    for version in ("old", "new"):
        cache = ReplayCache(tmp_path / "x.sqlite3", version, most_bytes=400_000)
        for n in range(40):
            cache.put(f"{n}", {"noise": noise.bytes(5_000).hex()})
    assert all(cache.get(f"{n}") is not None for n in range(40))


@pytest.mark.parametrize(
    "content", [b"no database at all" * 400, b"", b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_damaged_file_is_begun_anew(content: bytes, folder: Path, plays: list[Inputs]) -> None:
    folder.mkdir()
    (folder / "replays.sqlite3").write_bytes(content)
    first = predicted("chain")
    assert predicted("chain").to_dict() == first.to_dict()
    assert len(plays) == 1


def test_a_damaged_result_is_played_again(folder: Path, plays: list[Inputs]) -> None:
    first = predicted("chain")
    with sqlite3.connect(folder / "replays.sqlite3") as file:
        file.execute("UPDATE replays SET result = x'00'")
    assert predicted("chain").to_dict() == first.to_dict()
    assert len(plays) == 2


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind this user"
)
def test_a_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    monkeypatch.setattr(replays_module, "KEPT_ACCESSES", 0)
    monkeypatch.delenv("IOSIM_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(home))
    assert predicted("chain").method == "replay"


def test_a_place_that_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(replays_module, "KEPT_ACCESSES", 0)
    monkeypatch.setenv("IOSIM_CACHE", str(tmp_path / "file" / "below"))
    assert predicted("chain").method == "replay"
    assert (tmp_path / "file").read_text() == "mine"


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("IOSIM_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir() == Path("/home/someone/.cache/iosim")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == Path("/home/someone/.cache/iosim")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/someone")
    assert cache_dir() == Path("/var/cache/someone/iosim")
    monkeypatch.setenv("IOSIM_CACHE", "~/replays")
    assert cache_dir() == Path("/home/someone/replays")
    for word in ("off", "OFF", "0"):
        monkeypatch.setenv("IOSIM_CACHE", word)
        assert cache_dir() is None
        assert replay_cache() is None


def test_short_replays_do_not_open_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(replays_module, "KEPT_ACCESSES", 1_000_000)
    predicted("chain")
    assert not (tmp_path / "cache").exists()


def _put_many(place: Path, worker: int) -> None:
    cache = ReplayCache(place, "v")
    for n in range(50):
        cache.put(f"{worker} {n}", {"n": n})
        assert cache.get(f"{worker} {n}") == {"n": n}


@pytest.mark.slow
def test_several_processes_at_once(tmp_path: Path) -> None:
    place = tmp_path / "x.sqlite3"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_put_many, args=(place, worker)) for worker in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert ReplayCache(place, "v").state().results == 150


def test_several_threads_at_once(tmp_path: Path) -> None:
    cache = ReplayCache(tmp_path / "x.sqlite3", "v")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: cache.put(f"{n}", {"n": n}), range(100)))
        assert list(pool.map(lambda n: cache.get(f"{n}"), range(100))) == [
            {"n": n} for n in range(100)
        ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_opens_its_own(tmp_path: Path) -> None:
    cache = ReplayCache(tmp_path / "x.sqlite3", "v")
    cache.put("parent", {})
    writer = multiprocessing.get_context("fork").Process(target=lambda: cache.put("child", {}))
    writer.start()
    writer.join(60)
    assert cache.get("child") == {}


def test_a_locked_file_costs_a_miss_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY_S", 0.01)
    cache = ReplayCache(tmp_path / "x.sqlite3", "v")
    cache.put("a", {"n": 1})
    other = sqlite3.connect(cache.place, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert cache.get("a") is None
    cache.put("b", {"n": 2})
    other.execute("ROLLBACK")
    other.close()
    assert cache.get("a") == {"n": 1}
    assert cache.get("b") is None


def test_equal_replays_are_played_once(
    monkeypatch: pytest.MonkeyPatch, plays: list[Inputs]
) -> None:
    monkeypatch.setenv("IOSIM_CACHE", "off")
    shared = Replays(shares=True)
    start = threading.Barrier(4)

    def one(_: int) -> str:
        start.wait()
        return digest(shared.of(Call.of(CALL.problem, CALL.kernel, CALL.profile)))

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(one, range(4)))) == 1
    assert len(plays) == 1


def test_what_has_no_digest_is_refused() -> None:
    for value in (object(), {1, 2}, [np.array([object()])], int):
        with pytest.raises(TypeError, match="no digest"):
            digest(value)
    assert digest((1, 2)) != digest((12,)) != digest(("12",))
    assert digest(1.0) != digest(1)
    assert digest(np.arange(3)) != digest(np.arange(3, dtype=np.int32))
    assert digest(model(CALL.profile)) == digest(model(iosim.load_profile("t4")))


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["cache", *words]) == 0
    return capsys.readouterr().out


def test_the_command_shows_and_clears(
    folder: Path, capsys: pytest.CaptureFixture[str], plays: list[Inputs]
) -> None:
    assert "0 replays" in shown(capsys, "show")
    assert not folder.exists()
    predicted("chain")
    predicted("whole")
    assert f"{folder}" in (text := shown(capsys, "show"))
    assert "2 replays" in text
    (row,) = [
        line
        for line in shown(capsys, "show", "--format", "csv").splitlines()
        if "replays.sqlite3" in line
    ]
    assert ",2,2," in row
    assert "2 replays" in shown(capsys, "clear")
    assert "0 replays" in shown(capsys, "show")
    predicted("chain")
    assert len(plays) == 3


def test_the_command_where_it_is_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("IOSIM_CACHE", "off")
    assert "off" in shown(capsys, "show")
    assert "off" in shown(capsys, "clear")


def test_tests_leave_the_users_cache_alone() -> None:
    assert os.environ["IOSIM_CACHE"] == "off"
    assert sys.modules["iosim"] is iosim


@pytest.mark.slow
def test_a_report_is_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plays: list[Inputs]
) -> None:
    """Of many predictions short replays are kept, too: none of them is played twice, nor again by the next report."""
    monkeypatch.setenv("IOSIM_CACHE", str(tmp_path / "cache"))
    problems = tuple(
        iosim.AttentionProblem(heads=8, seq_q=n, head_dim=64) for n in (512, 2048, 4096)
    )
    request = CaseGrid.of(("t4", "h100"), ("naive", "cutlass"), problems)
    build_report(request)
    build_report(request)
    digests = [
        digest(play) for play in plays if tile_accesses(play.chain) >= replays_module.KEPT_OF_MANY
    ]
    assert len(digests) == len(set(digests)) > 10
