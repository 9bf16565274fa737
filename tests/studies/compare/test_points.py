"""Kernels x GPUs x lengths: what is asked, in which order, and the command lines for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iosim.base.errors import InputError
from iosim.hardware.profile import load_profile
from iosim.problem.attention import AttentionProblem
from iosim.studies.compare.points import (
    CaseGrid,
    Gpu,
    Point,
    baseline,
    by_gpu,
    gpus_of,
    label_of,
    least_bytes,
    notes,
    series,
)

SHORT, MIDDLE, LONG = (AttentionProblem(heads=4, seq_q=n, head_dim=64) for n in (100, 200, 300))


def grid(
    *problems: AttentionProblem, kernels: tuple[str, ...] = ("fa2", "naive"), **more: Any
) -> CaseGrid:
    return CaseGrid.of(("a100", "t4"), kernels, problems or (SHORT,), **more)


def point(
    name: str = "P001", gpu: str = "a100", kernel: str = "fa2", tokens: int = 100, **more: Any
) -> Any:
    bounds = SimpleNamespace(
        compulsory_read=30, compulsory_write=12, no_l2_read=500, no_l2_write=60
    )
    defaults = {
        "hbm_bounds": bounds,
        "time": SimpleNamespace(total_s=2.5, missing=()),
        "notes": (),
        "hbm_known": True,
        "total": {"l2": 900, "hbm": 70}.__getitem__,
        "smem": SimpleNamespace(total=4000),
        "flops": 7,
        "hbm_payload": SimpleNamespace(total=66),
        "memory_bytes": {"peak": 1000, "workspace": 10},
        "kernel": SimpleNamespace(algorithm="naive" if kernel == "naive" else "flash"),
    }
    of = Gpu(gpu, gpu, load_profile(gpu))
    return Point(name, of, kernel, tokens, SimpleNamespace(**defaults | more))  # type: ignore[arg-type]


def test_lengths_are_sorted_and_doubles_dropped() -> None:
    sorted_grid = grid(LONG, SHORT, MIDDLE, SHORT, kernels=(" FA2", "naive", "fa2"))
    assert sorted_grid.lengths == (100, 200, 300)
    assert sorted_grid.kernels == ("fa2", "naive")
    assert sorted_grid.middle is MIDDLE
    assert grid(SHORT, LONG).middle is LONG
    assert [(g.label, k, p.seq_q) for g, k, p, _ in grid(SHORT, LONG).jobs[:3]] == [
        ("a100-sxm-80gb", "fa2", 100),
        ("a100-sxm-80gb", "fa2", 300),
        ("a100-sxm-80gb", "naive", 100),
    ]
    assert len(grid(SHORT, LONG).jobs) == 2 * 2 * 2


def test_the_default_and_what_it_stands_for_are_one_prediction() -> None:
    chosen_grid = CaseGrid.of(("a100",), ("default", "fa2"), (SHORT,))
    chosen = [(k, name_typed) for _, k, _, name_typed in chosen_grid.jobs]
    assert chosen[0][1] == "default"
    assert len(chosen) == len({k for k, _ in chosen})


def test_what_may_differ() -> None:
    keys = [AttentionProblem(heads=4, seq_q=n, seq_k=900, head_dim=64) for n in (1, 2)]
    assert grid(*keys).other_keys == 900
    assert grid(SHORT, LONG).other_keys is None
    for other in (
        AttentionProblem(heads=2, seq_q=50, head_dim=64),
        AttentionProblem(heads=4, seq_q=3, seq_k=901, head_dim=64),
    ):
        with pytest.raises(InputError):
            grid(keys[0], other)
    for empty in ({"gpus": ()}, {"kernels": ()}, {"problems": ()}):
        of: dict[str, Any] = {"gpus": gpus_of(("a100",)), "kernels": ("fa2",), "problems": (SHORT,)}
        with pytest.raises(InputError):
            CaseGrid(**of | empty)
    with pytest.raises(InputError):
        grid(kernels=("no-such-kernel",))


def test_command_lines() -> None:
    typed_grid = grid(SHORT, LONG, l2_start="warm", method="capacity")
    gpu = typed_grid.gpus[0]
    line = typed_grid.predict_line(gpu, "fa2", SHORT)
    assert line.startswith(f"iosim predict --gpu {gpu.argument} --kernel fa2 --seq-len 100 ")
    assert line.endswith("--l2 warm --method capacity --format json")
    report = typed_grid.report_line()
    assert report.startswith(
        "iosim report --gpu a100-sxm-80gb --gpu t4 --kernel fa2 --kernel naive --seq-len 100,300"
    )
    assert "--heads 4" in report
    assert report.endswith("--l2 warm --method capacity")
    assert grid().report_line().endswith("--l2 cold")
    decode = CaseGrid.of(
        ("a100",), ("fa2",), (AttentionProblem(heads=4, seq_q=1, seq_k=50, head_dim=64),)
    )
    assert "--seq-len 1 --seq-len-k 50" in decode.report_line()


def test_numbers_of_a_point() -> None:
    p = point()
    assert (p.l2, p.hbm, p.smem, p.hbm_payload, p.flops) == (900, 70, 4000, 66, 7)
    assert (p.compulsory, p.no_l2, p.naive) == (42, 560, False)
    values = [p.value(name) for name in ("l2", "hbm", "time", "memory")]
    assert values == [900, 70, 2.5, 1000]
    unknown = point(hbm_known=False, smem=None)
    assert (unknown.hbm, unknown.hbm_payload, unknown.smem) == (None, None, None)
    size = load_profile("a100").usable_memory_bytes
    assert size is not None
    peaks = [point(memory_bytes={"peak": n}).fits for n in (size, size + 1)]
    assert peaks == ["yes", "no"]


def test_points_in_groups() -> None:
    points = [point(), point(gpu="t4", kernel="naive"), point(kernel="naive", tokens=50)]
    assert [*map(len, by_gpu(points).values())] == [2, 1]
    assert list(series(points)) == ["fa2", "naive"]
    assert baseline(points) == "naive"
    assert baseline(points[:1]) is None
    fewer = SimpleNamespace(compulsory_read=1, compulsory_write=2, no_l2_read=0, no_l2_write=0)
    assert least_bytes([*points, point(hbm_bounds=fewer)]) == {50: 42, 100: 3}


def test_a_note_that_kernels_share_is_said_once() -> None:
    time = SimpleNamespace(total_s=1.0, missing=("no clock",))
    points = [point(notes=("a", "fa2: b")), point(kernel="naive", notes=("a",), time=time)]
    assert notes(points) == ("fa2, naive: a", "fa2: b", "naive: no clock")


def test_labels_of_gpus() -> None:
    gpus = gpus_of(("a100", "t4", "a100-sxm-80gb"))
    assert [g.label for g in gpus] == ["a100-sxm-80gb", "t4"]
    assert label_of(gpus, "a100", "gpu") == "a100-sxm-80gb"
    with pytest.raises(InputError, match="h100"):
        label_of(gpus, "h100", "gpu")
