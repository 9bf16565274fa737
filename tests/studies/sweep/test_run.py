"""Sweeps: closed forms of many rows against single predictions, the same rows whatever ran them, and interrupts."""

from __future__ import annotations

import contextlib
import csv
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from effort import examples
from scripts import hears_ctrl_c

import iosim
from iosim import sweep
from iosim.base.errors import InputError
from iosim.catalog.libraries import choice_names, entry_names
from iosim.commands.cli import main
from iosim.prediction.predictor import predict
from iosim.studies.sweep import closed
from iosim.studies.sweep.cases import Words, cases, problem_of, settings_of
from iosim.studies.sweep.closed import evaluate
from iosim.studies.sweep.rows import Done
from iosim.studies.sweep.run import journal_of, opened

pytestmark = pytest.mark.usefixtures("replays_once")

KERNELS = (*entry_names(), *choice_names())
GRID: dict[str, Any] = {
    "gpu": ["a100", "t4"], "kernel": ["fa2", "flash", "naive"], "seq_len": [256, 500, 1024], "heads": [4, 8],
    "kv_heads": [4],
}  # fmt: skip


def rows(rng: random.Random, kernel: str, number: int, alike: int) -> list[dict[str, Any]]:
    """Problems of one kernel: `alike` at a time differ in sizes and tiles alone."""

    def drawn() -> dict[str, Any]:
        mask = rng.choice(["none", "causal", "window"])
        return {
            "gpu": rng.choice(["a100", "h100-sxm", "h200-sxm", "t4"]), "kernel": kernel,
            "batch": rng.choice([1, 2, 16]),
            "heads": rng.choice([1, 6, 8]), "kv_heads": rng.choice([None, 1, 2]),
            "seq_q": rng.choice([1, 512, rng.randint(1, 300), rng.randint(1, 9000)]),
            "seq_k": rng.choice([None, None, rng.randint(1, 20000)]), "head_dim": rng.choice([64, 80, 128, 192, 256]),
            "head_dim_v": rng.choice([None, None, None, 64]), "dtype": rng.choice(["bf16", "fp16", "fp16", "fp32"]),
            "mask": mask, "window": rng.choice([0, 3, 100, 4000]) if mask == "window" else None,
            "offset": rng.choice([None, None, -511, 3, 4000]) if mask != "none" else None,
            "passes": rng.choice(["fwd", "fwd", "bwd", "fwd+bwd"]), "dropout": rng.choice([0.0, 0.0, 0.0, 0.1]),
            "tile": rng.choice([None, None, (64, 64), (128, 32), (48, 80), (16, 16), (256, 256)]),
            "bias": rng.choice(["none"] * 5 + ["full", "alibi"]), "page_size": rng.choice([None] * 8 + [64]),
            "latent_kv": kernel in ("mla", "flashmla"), "layout": rng.choice(["bhsd", "bshd"]),
        }  # fmt: skip

    shared = ("gpu", "dtype", "mask", "passes", "dropout", "bias", "page_size", "layout")
    drawn_rows = []
    while len(drawn_rows) < number:
        first = drawn()
        for _ in range(alike):
            row = drawn() | {name: first[name] for name in shared}
            row["window"] = rng.choice([0, 3, 100, 4000]) if row["mask"] == "window" else None
            row["offset"] = (
                first["offset"] if first["offset"] is None else rng.choice([-511, 0, 3, 4000])
            )
            drawn_rows.append(row)
    return drawn_rows


def single(case: dict[str, Any], method: str) -> tuple[dict[str, int], str | None]:
    """What `predict` says of a row: its numbers, or why it is refused."""
    try:
        p = predict(
            problem_of(case),
            case["kernel"],
            case["gpu"],
            method=method,
            overrides=settings_of(case),
        )
    except InputError as error:
        return {}, str(error)
    tile, limits = p.kernel.tile, p.hbm_bounds
    numbers = {
        "l2_read_bytes": p.total("l2", "read"), "l2_write_bytes": p.total("l2", "write"), "flops": p.flops,
        "compulsory_read_bytes": limits.compulsory_read, "compulsory_write_bytes": limits.compulsory_write,
        "no_l2_read_bytes": limits.no_l2_read, "no_l2_write_bytes": limits.no_l2_write, "block_q": tile.block_q,
        "block_k": tile.block_k, "used_warps": tile.warps, "used_stages": tile.stages, "used_splits": p.kernel.splits,
        "memory_peak_bytes": p.memory_bytes["peak"],
        "spilled_registers": max(fit.spilled_registers for fit in p.call.residencies),
    }  # fmt: skip
    if method == "capacity":
        numbers |= {
            "hbm_read_bytes": p.total("hbm", "read"),
            "hbm_write_bytes": p.total("hbm", "write"),
        }
    return numbers, None


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_closed_forms_are_single_predictions(kernel: str) -> None:
    rng, alike = random.Random(kernel), examples(120)
    drawn = rows(rng, kernel, 2 * alike, alike)
    part = cases({}, {name: Words.of([row[name] for row in drawn]) for name in drawn[0]}).part(
        0, len(drawn)
    )
    for method in ("bounds", "capacity"):
        found = evaluate(part, method)
        left = set(found.remaining.tolist())
        for n in range(part.rows):
            if n in left:
                continue
            numbers, refused = single(part.case(n), method)
            assert found.refused[n] == refused, part.case(n)
            assert {name: int(found.columns[name][n]) for name in numbers} == numbers, part.case(n)
            assert all(
                (found.columns[name][n] is not np.ma.masked) == (name in numbers)
                for name in closed.FOUND
            ), part.case(n)


@pytest.mark.parametrize("kernel", ["flash", "naive", "fa2", "fa3", "cudnn", "sdpa"])
def test_usual_grids_have_closed_forms(kernel: str) -> None:
    grid = {"gpu": ["h100"], "kernel": [kernel], "seq_q": list(range(256, 8192, 256)), "heads": [8, 16, 32],
            "batch": [1, 4], "head_dim": [64, 128], "mask": ["none", "causal"]}  # fmt: skip
    made = cases(grid)
    found = evaluate(made.part(0, len(made)), "capacity")
    assert found.remaining.size <= len(made) / 100  # too few like them
    assert found.without_form == 0
    assert all(reason is None for reason in found.refused)


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
            predict(problem_of({"heads": 32, "seq_q": 4096, "head_dim": int(row.head_dim)}), "flash", "t4",
                    overrides=settings_of({"tile": (side, side)}))  # fmt: skip
        assert row.refused == str(error.value)
        assert pandas.isna(row.l2_read_bytes)


def test_what_has_no_closed_form_is_predicted_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    frame = sweep(
        kernel="flash", seq_len=[512, 1024], mask=["causal", "butterfly"], method="capacity"
    )
    for _, row in frame.iterrows():
        numbers, _ = single({"heads": 32, "seq_q": int(row.seq_q), "head_dim": 128, "mask": row["mask"],
                             "kernel": "flash", "gpu": "a100"}, "capacity")  # fmt: skip
        assert {name: row[name] for name in numbers} == numbers
    asked = (
        "sweep --kernel flash --seq-len 512 --mask causal,butterfly --method capacity --format csv"
    )
    assert main(asked.split()) == 0
    assert "1 of 2 rows have no closed form of --method capacity" in capsys.readouterr().err


def test_a_row_of_bytes_beyond_64_bits_is_refused() -> None:
    frame = sweep(kernel=["naive", "flash"], seq_len=1 << 20, heads=[1, 1 << 14], method="bounds")
    exact, _ = single(
        {"kernel": "naive", "gpu": "a100", "seq_q": 1 << 20, "heads": 1 << 14, "head_dim": 128},
        "bounds",
    )
    assert max(exact.values()) >= 1 << 63
    large = frame.heads == 1 << 14
    assert frame[large].refused.str.contains("more bytes than 64 bits count").all()
    assert frame[~large].refused.isna().all()


def test_replayed_rows_are_single_predictions() -> None:
    frame = sweep(
        gpu="h100", kernel=["fa2", "naive"], seq_len=[300, 512], heads=2, causal=True, jobs=1
    )
    for _, row in frame.iterrows():
        problem = problem_of(
            {"seq_q": int(row.seq_q), "heads": 2, "head_dim": 128, "mask": "causal"}
        )
        one = predict(problem, row.kernel, "h100")
        assert (row.hbm_read_bytes, row.hbm_write_bytes) == (
            one.total("hbm", "read"),
            one.total("hbm", "write"),
        )
        assert (row.time_s, row.method, row.bound_by) == (
            one.time.total_s,
            one.method,
            one.time.bound_by,
        )


def test_a_grid_a_file_and_a_frame_give_the_same_rows(tmp_path: Path) -> None:
    grid = sweep(**GRID, method="capacity")
    assert len(grid) == 2 * 3 * 3 * 2
    asked = grid[["gpu", "kernel", "heads", "kv_heads", "seq_q"]].rename(
        columns={"seq_q": "--seq-len"}
    )
    asked.to_csv(tmp_path / "asked.csv", index=False)
    from_file = sweep(tmp_path / "asked.csv", method="capacity")
    pandas.testing.assert_frame_equal(from_file, grid)
    pandas.testing.assert_frame_equal(sweep(asked, method="capacity"), grid)
    half = asked.drop(columns=["kernel"]).drop_duplicates()
    crossed = sweep(half, kernel=["fa2", "flash", "naive"], method="capacity")
    order = ["gpu", "kernel", "heads", "seq_q"]
    pandas.testing.assert_frame_equal(
        crossed.sort_values(order, ignore_index=True), grid.sort_values(order, ignore_index=True)
    )


def test_what_a_sweep_wrote_can_be_asked_for_again(tmp_path: Path) -> None:
    first = sweep(**GRID, method="capacity", out=tmp_path / "first.csv")
    again = sweep(tmp_path / "first.csv", method="capacity")
    pandas.testing.assert_frame_equal(first, again)


@pytest.mark.slow
def test_csv_and_parquet_hold_the_same(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    settings = {**GRID, "key_padding": [True, False], "dropout": [0.0, 0.125], "window": [None, 64]}
    frames = [
        sweep(**settings, method="bounds", out=tmp_path / f"out.{end}")
        for end in ("csv", "parquet")
    ]
    pandas.testing.assert_frame_equal(*frames)
    pandas.testing.assert_frame_equal(frames[0], sweep(**settings, method="bounds"))
    pandas.testing.assert_frame_equal(sweep(tmp_path / "out.parquet", method="bounds"), frames[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.parquet"]


def test_without_pyarrow_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["sweep", "--method", "bounds", "--out", str(tmp_path / "out.parquet")]) == 2
    assert "iosim[parquet]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


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
    told = capsys.readouterr().out
    resumed = int(told.split("(")[1].split()[0].replace(",", ""))
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


def leave(target: Path, sweep: str, *parts: Done) -> None:
    """A journal of these parts, as an interrupt leaves it."""
    with contextlib.suppress(KeyboardInterrupt), opened(target, sweep) as journal:
        for part in parts:
            journal.append(part)
        raise KeyboardInterrupt


def test_rows_of_another_sweep_are_not_mixed_in(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    leave(target, "another", Done(0, 1, "a,b\n", 0, 0))
    with pytest.raises(InputError, match="holds rows of another sweep"):
        sweep(**GRID, method="bounds", out=target)
    assert len(sweep(**GRID, method="bounds", out=target, fresh=True)) == 36
    assert not journal_of(target).exists()


def test_a_journal_keeps_parts_and_their_order(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    leave(target, "one", Done(4, 6, "four\nfive\n", 1, 0), Done(0, 2, "zero\none\n", 0, 2))
    with opened(target, "one") as journal:
        assert journal.gaps(10) == [(2, 4), (6, 10)]
        assert journal.parts == [Done(0, 2, None, 0, 2), Done(4, 6, None, 1, 0)]
        assert b"".join(journal.csv()) == b"zero\none\nfour\nfive\n"
        journal.append(Done(6, 10, "rest\n", 0, 0))
        assert journal.gaps(10) == [(2, 4)]
    assert not list(tmp_path.iterdir())


def test_what_lies_in_a_journals_place_is_left_alone(tmp_path: Path) -> None:
    journal_of(tmp_path / "out.csv").write_text(
        "a user's own, and longer than the head of a file of SQLite would be" * 9
    )
    with pytest.raises(InputError, match=r"out.csv.partial beside it: file is not a database"):
        sweep(**GRID, method="bounds", out=tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv.partial"]


@pytest.mark.slow
def test_a_million_closed_forms_take_seconds(tmp_path: Path) -> None:
    begin = time.process_time()
    code = main(["sweep", "--gpu", "a100,h100", "--kernel", "flash,fa2,naive", "--seq-len", "64:16000:32", "--heads",
                 "4,8,16,32,64", "--batch", "1,2,4,8,16,32,64", "--head-dim", "64,128", "--method", "bounds", "--jobs",
                 "1", "--out", str(tmp_path / "out.csv")])  # fmt: skip
    took = time.process_time() - begin
    assert code == 0
    rows_there = (tmp_path / "out.csv").read_bytes().count(b"\n") - 1
    assert rows_there == 2 * 3 * 499 * 5 * 7 * 2
    assert took / rows_there * 1e6 < 40  # seconds a million rows, of one core that others may share


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seq_len,lenght\n5,5\n", "'lenght' is not known"),
        ("seq_len\n5\nmany\n", "'rows.csv', row 2: --seq-len 'many'"),
        ("seq_len,seq_q\n5,5\n", "two columns say what --seq-len is"),
        ("gpu,seq_len\na100,5\n,5\n", "row 2: --gpu is empty"),
        ("seq_len\n", "are none"),
        ("", "cannot be read"),
        ("refused\nno\n", "no column of a problem"),
        ("tile\n64by3\n", "row 1: --tile '64by3' is not of the form QxK"),
        ("dropout\nhalf\n", "row 1: --dropout 'half'"),
    ],
)
def test_a_bad_file_of_rows_is_one_line(
    text: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text(text)
    assert main(["sweep", "--problems", "rows.csv"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_an_option_beside_a_column_of_the_file_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("seq_len,heads\n512,4\n")
    asked = ["sweep", "--problems", str(tmp_path / "rows.csv"), "--method", "bounds"]
    assert main([*asked, "--heads", "8"]) == 2
    assert "--heads is given twice" in capsys.readouterr().err
    assert main([*asked, "--head-dim", "64,128", "--format", "csv"]) == 0
    found = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert {(row["heads"], row["head_dim"]) for row in found} == {("4", "64"), ("4", "128")}


def test_cells_of_a_file_may_be_empty_or_written_for_people(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(
        "seq-len,kv_heads,causal,window,tile,key_padding\n1k,,true,,128x64,\n2k,8,,256,,false\n"
    )
    frame = sweep(tmp_path / "rows.csv", kernel="flash", method="bounds")
    assert list(frame.seq_q) == [1024, 2048]
    assert list(frame.kv_heads) == [32, 8]
    assert list(frame["mask"]) == ["causal", "window"]
    assert list(frame.block_q) == [128, frame.block_q[1]]
    assert list(frame.key_padding) == [False, False]


def test_a_prefix_lengthens_the_keys() -> None:
    frame = sweep(kernel="flash", seq_len=[16, 32], prefix=[100, 200], method="bounds")
    assert sorted(zip(frame.seq_q, frame.seq_k, strict=True)) == [
        (16, 116),
        (16, 216),
        (32, 132),
        (32, 232),
    ]


def test_texts_are_lists_in_python_as_on_the_command_line(tmp_path: Path) -> None:
    words = {"gpu": "a100,l4", "kernel": "naive, flash", "seq_len": "1k:4k:x2", "heads": "8,16", "dtype": "fp16,bf16",
             "method": "bounds"}  # fmt: skip
    out = tmp_path / "out.csv"
    options = [
        word
        for name, text in words.items()
        for word in (f"--{name.replace('_', '-')}", text.replace(" ", ""))
    ]
    assert main(["sweep", *options, "--out", str(out)]) == 0
    frame = iosim.sweep(**words)
    assert len(frame) == 2 * 2 * 3 * 2 * 2
    assert frame.to_csv(index=False) == iosim.sweep(out=tmp_path / "python.csv", **words).to_csv(
        index=False
    )
    assert out.read_text() == (tmp_path / "python.csv").read_text()
    tiles = iosim.sweep(
        kernel="flash", tile="64x32,128x64", seq_len=["1k:2k:x2", 4096], method="bounds"
    )
    assert sorted(set(tiles["seq_q"])) == [1024, 2048, 4096]
    assert set(tiles["tile"]) == {"64x32", "128x64"}
    assert set(
        iosim.sweep(kernel="flash", prefix="1k,2k", seq_len=64, method="bounds")["seq_k"]
    ) == {1088, 2112}
    with pytest.raises(
        iosim.InputError, match="causal 'yes' is no truth value; accepted: True, False"
    ):
        iosim.sweep(causal="yes", method="bounds")


def test_windows_go_with_the_masks_that_take_one() -> None:
    frame = sweep(kernel="flash", mask=["causal", "window"], window=[64, 128], method="bounds")
    assert [(m, None if pandas.isna(w) else int(w)) for m, w in zip(frame["mask"], frame.window, strict=True)] == [
        ("causal", None), ("window", 64), ("window", 128)
    ]  # fmt: skip


def test_windows_to_the_right_are_swept() -> None:
    frame = sweep(kernel="flash", window_right=[0, 64, 128], seq_len=[512, 1024], method="capacity")
    assert set(frame["mask"]) == {"window"}
    for _, row in frame.iterrows():
        numbers, _ = single({"kernel": "flash", "gpu": "a100", "heads": 32, "head_dim": 128, "seq_q": int(row.seq_q),
                             "mask": "window", "window_right": int(row.window_right)}, "capacity")  # fmt: skip
        assert {name: row[name] for name in numbers} == numbers
    causal = sweep(kernel="flash", causal=True, window=64, method="bounds")
    assert list(causal.l2_read_bytes) == list(
        sweep(kernel="flash", window=64, method="bounds").l2_read_bytes
    )


def test_the_package_offers_it() -> None:
    frame = iosim.sweep(kernel="flash", seq_len=np.array([64, 128]), method="bounds")
    assert list(frame.seq_q) == [64, 128]
