"""Sweeps: closed forms of many rows against single predictions, the same rows whatever ran them, and interrupts."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas
import pytest
from scripts import hears_ctrl_c
from swept import GRID

import iosim
from iosim import sweep
from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.prediction.predictor import predict
from iosim.studies.requests import SweepRequest
from iosim.studies.sweep.cases import problem_of, settings_of
from iosim.studies.sweep.rows import Done
from iosim.studies.sweep.run import Where, asked_cases, checked, into_file, journal_of, opened

pytestmark = pytest.mark.usefixtures("replays_once")


def test_a_refusal_says_each_row_its_own_numbers() -> None:
    frame = sweep(
        gpu="t4",
        kernel="flash",
        tile=["128x128", "256x256"],
        head_dim=[64, 128, 256],
        method="bounds",
    )
    refused = frame[frame.refused.notna()]
    assert len(refused) > 1
    for _, row in refused.iterrows():
        side = int(row.tile.split("x")[0])
        with pytest.raises(InputError) as error:
            predict(
                problem_of({"heads": 32, "seq_q": 4096, "head_dim": int(row.head_dim)}),
                "flash",
                "t4",
                overrides=settings_of({"tile": (side, side)}),
            )
        assert row.refused == str(error.value)
        assert pandas.isna(row.l2_read_bytes)


def test_replayed_rows_are_single_predictions() -> None:
    frame = sweep(
        gpu="h100", kernel=["fa2", "naive"], seq_len=[300, 512], heads=2, causal=True, jobs=1
    )
    for _, row in frame.iterrows():
        problem = problem_of(
            {"seq_q": int(row.seq_q), "heads": 2, "head_dim": 128, "mask": "causal"}
        )
        prediction = predict(problem, row.kernel, "h100")
        assert (row.hbm_read_bytes, row.hbm_write_bytes) == (
            prediction.total("hbm", "read"),
            prediction.total("hbm", "write"),
        )
        assert (row.time_s, row.method, row.bound_by) == (
            prediction.time.total_s,
            prediction.method,
            prediction.time.bound_by,
        )


def test_processes_and_one_process_give_the_same_file(tmp_path: Path) -> None:
    for name, settings in (
        ("closed", {**GRID, "method": "capacity"}),
        ("replayed", {**GRID, "kernel": "fa2"}),
    ):
        files = []
        for jobs in (1, 2):
            files.append(tmp_path / f"{name}{jobs}.csv")
            sweep(**settings, out=files[-1], jobs=jobs)
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same_file(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    sweep(**GRID, out=tmp_path / "here.csv", jobs=1)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        sweep(**GRID, out=tmp_path / "there.csv", dask=cluster.scheduler_address)
    assert (tmp_path / "here.csv").read_bytes() == (tmp_path / "there.csv").read_bytes()


REPLAYS = [
    "--gpu",
    "h100",
    "--kernel",
    "fa2,naive",
    "--seq-len",
    "256:2k:64",
    "--heads",
    "4",
    "--jobs",
    "1",
]


def log_of(target: Path) -> Path:
    """What SQLite has written last of a journal."""
    return target.with_name(f"{journal_of(target).name}-wal")


@contextlib.contextmanager
def running(target: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A sweep of some seconds into `target`, once some of its rows are done."""
    command = [sys.executable, "-m", "iosim", "sweep", *REPLAYS, "--out", str(target)]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, preexec_fn=hears_ctrl_c
    )
    try:
        begin = time.monotonic()
        while not log_of(target).exists() or log_of(target).stat().st_size < 50_000:
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() - begin < 60
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, whole = tmp_path / "killed.csv", tmp_path / "whole.csv"
    with running(target) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not target.exists()
    with log_of(target).open("ab") as file:
        file.write(b"as a kill in the middle of a write")
    assert main(["sweep", *REPLAYS, "--out", str(target)]) == 0
    out = capsys.readouterr().out
    resumed = int(out.split("(")[1].split()[0].replace(",", ""))
    assert 2 < resumed < 64
    assert main(["sweep", *REPLAYS, "--out", str(whole), "--jobs", "2"][:-2]) == 0
    assert target.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed.csv", "whole.csv"]


def test_two_sweeps_do_not_write_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.csv"
    with running(target):
        assert main(["sweep", *REPLAYS, "--out", str(target)]) == 2
        assert f"--out '{target}' is being written by another sweep" in capsys.readouterr().err
        assert main(["sweep", *REPLAYS, "--out", str(target), "--fresh"]) == 2
    assert journal_of(target).exists()


def test_an_interrupt_says_how_to_go_on(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    with running(target) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert b"the same command goes on from there" in err
    assert journal_of(target).exists()


def test_what_lies_in_a_journals_place_is_left_alone(tmp_path: Path) -> None:
    journal_of(tmp_path / "out.csv").write_text(
        "a user's own, and longer than the head of a file of SQLite would be" * 9
    )
    with pytest.raises(InputError, match=r"out.csv.partial beside it: file is not a database"):
        sweep(**GRID, method="bounds", out=tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv.partial"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--gpu a100,a1000", "GPU 'a1000' is not known; did you mean a100"),
        ("--kernel fa2,fa22", "--kernel 'fa22' is not known"),
        ("--seq-len 0", "--seq-len 0 is out of range"),
        ("--head-dim 5,x", "--head-dim 'x' is not a size; accepted: whole numbers"),
        ("--heads 3 --kv-heads 2", "all 2 rows: heads 3 is not a multiple"),
        ("--out nowhere/out.csv", "its directory does not exist"),
        ("--out out.txt", "ends in neither .csv nor .parquet"),
        ("--problems none.csv", "'none.csv' cannot be read"),
        ("--problems out.txt", "ends in neither"),
        ("--jobs 0", "--jobs 0 is out of range"),
        ("--jobs 2 --dask tcp://x:1", "--jobs 2 contradicts --dask 'tcp://x:1'"),
        ("--fresh", "--fresh goes with --out"),
        ("--seq-lens 3,4", "--seq-lens is no part of a sweep"),
        ("--prefix 3 --seq-len-k 5", "--prefix contradicts"),
        ("--causal --mask none", "--causal contradicts --mask"),
        ("--format csv --out out.parquet", "--format csv contradicts --out"),
        ("--heads 1:2k:1", "--format table shows 1,000 rows"),
        ("--kernel fa3 --gpu t4", "the sweep is refused"),
    ],
)
def test_bad_input_is_one_line(
    options: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *options.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_package_offers_it() -> None:
    frame = iosim.sweep(kernel="flash", seq_len=np.array([64, 128]), method="bounds")
    assert list(frame.seq_q) == [64, 128]


def test_what_another_sweep_has_begun_is_kept_unless_it_is_to_go(tmp_path: Path) -> None:
    target = tmp_path / "rows.csv"
    with contextlib.suppress(KeyboardInterrupt), opened(target, "another") as journal:
        journal.append(Done(0, 1, "row", 0, 0))
        raise KeyboardInterrupt
    cases = asked_cases(SweepRequest(values={"seq_len": [64, 128]}, method="bounds"))
    how = checked(cases, "bounds", "cold")
    with pytest.raises(InputError, match="holds rows of another sweep"):
        into_file(cases, how, Where(), target)
    assert into_file(cases, how, Where(), target, fresh=True).rows == 4  # of naive and the default
