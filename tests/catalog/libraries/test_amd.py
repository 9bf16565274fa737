"""AMD's kernels: whose GPUs run them, their tiles and grids, heads shared out to the chiplets' L2s."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from iosim import AttentionProblem, InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import Overrides, resolve
from iosim.catalog.libraries.default import default_kernel
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.kernel.residency import residency
from iosim.kernel.unit import UNITS
from iosim.prediction.predictor import predict
from iosim.readers.replay.lowering import start_order
from iosim.readers.timing.running import unit_model
from iosim.studies.orders.entry import OrderEntry, ranked
from iosim.studies.orders.space import OrderChoice

AMD = ("aiter", "aiter-triton", "ck", "hipkittens")
XCDS = 8


def problem(**more: object) -> AttentionProblem:
    return AttentionProblem(**{"heads": 16, "seq_q": 2048, "head_dim": 128, "dtype": "bf16"} | more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", AMD)
def test_an_amd_kernel_runs_on_amd_alone(name: str) -> None:
    assert resolve(name, problem(), load_profile("mi355x")).name == name
    with pytest.raises(InputError, match=rf"{name}.* does not run on h200-sxm"):
        resolve(name, problem(), load_profile("h200"))


@pytest.mark.parametrize("name", ["fa2", "fa3", "cudnn", "flashinfer", "naive-cu"])
def test_nvidias_kernels_do_not_run_on_amd(name: str) -> None:
    with pytest.raises(InputError, match=r"does not run on mi300x; accepted there: .*ck, flash"):
        resolve(name, problem(), load_profile("mi300x"))


def test_the_default_is_the_librarys_fastest() -> None:
    gpu = load_profile("mi355x")
    assert default_kernel(problem(), gpu) == "aiter"
    assert default_kernel(problem(head_dim=64), gpu) == "ck"
    assert default_kernel(problem(dropout=0.1), gpu) == "flash"


@pytest.mark.parametrize(
    ("name", "tile", "threads", "a_unit"),
    [("hipkittens", (256, 64), 512, 1), ("ck", (128, 128), 256, 2)],
)
def test_tiles_and_what_a_compute_unit_holds(
    name: str, tile: tuple[int, int], threads: int, a_unit: int
) -> None:
    gpu = load_profile("mi355x")
    kernel = resolve(name, problem(), gpu)
    (launch,) = plan(problem(), kernel).launches
    assert kernel.tile is not None
    assert (kernel.tile.block_q, kernel.tile.block_k) == tile
    assert kernel.warp_size * kernel.tile.warps == threads
    assert residency(launch, gpu).ctas_per_sm == a_unit
    assert unit_model(launch, gpu, "bf16", kernel).source == UNITS["mfma"].source


def test_a_head_runs_on_one_l2() -> None:
    """Of HipKittens' grid, workgroup w of which runs on L2 w % 8, every L2 has its own heads, two of 16."""
    gpu = load_profile("mi355x")
    for batch in (1, 2):
        (launch,) = plan(
            problem(batch=batch), resolve("hipkittens", problem(batch=batch), gpu)
        ).launches
        head, _ = start_order(launch)
        on = np.arange(launch.work_tiles) % XCDS
        assert all(len(set(on[head == some_head])) == 1 for some_head in set(head.tolist()))
        assert all(len(set(head[on == xcd])) == 2 * batch for xcd in range(XCDS))
        assert head[0] != head[XCDS], "of an L2's two heads, the other one comes next"
        first = head[: launch.work_tiles // batch]
        assert set(first.tolist()) == set(range(16)), "a sequence after the other"


def test_sharing_heads_out_saves_bytes_behind_the_l2s() -> None:
    gpu, case = load_profile("mi355x"), problem(seq_q=4096)

    def found(**settings: object) -> tuple[int, float]:
        p = predict(
            case, resolve("hipkittens", case, gpu, Overrides(order="query", **settings)), gpu
        )  # type: ignore[arg-type]
        assert p.side is not None
        assert p.l2_hit_rate is not None
        return p.side.read, p.l2_hit_rate

    (apart, apart_hits), (together, hits) = found(chiplets=1), found()
    assert together < 0.3 * apart
    assert hits > apart_hits


def test_orders_names_a_head_an_l2_first(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--gpu mi355x --heads 16 --seq-len 2k --head-dim 128 --dtype bf16 --kernel ck --order query --format json"
    assert main(["orders", *options.split()]) == 0
    orders = json.loads(capsys.readouterr().out)["orders"]
    least = {
        n: min(order["side_bytes"] for order in orders if order["chiplets"] == n) for n in (1, XCDS)
    }
    assert orders[0]["chiplets"] == XCDS
    assert least[XCDS] < 0.3 * least[1]


def test_predict_says_what_goes_behind_the_l2s(capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--gpu",
        "mi355x",
        "--heads",
        "16",
        "--seq-len",
        "1k",
        "--head-dim",
        "128",
        "--kernel",
        "ck",
    ]
    assert main(["predict", *options]) == 0
    text = capsys.readouterr().out
    assert "L2s <-> memory-side cache (replay)" in text
    assert "% of the bytes that are read from an L2 lie in it" in text
    assert "assumed" in text
    assert main(["predict", *options, "--format", "json"]) == 0
    (out,) = json.loads(capsys.readouterr().out)["predictions"]
    totals = out["totals"]
    assert totals["hbm"]["read"] <= totals["side"]["read"] <= totals["l2"]["read"]
    assert out["l2_hit_rate"] == pytest.approx(
        1 - totals["side"]["read"] / totals["l2"]["read"], abs=0.02
    )


def test_of_orders_alike_at_hbm_the_one_with_less_behind_the_l2s_is_first() -> None:
    own_order, shared = OrderChoice(), OrderChoice(chiplets=XCDS)
    entries = [
        OrderEntry(own_order, (), 1000, 0, 1000, 1e-3, 8000),
        OrderEntry(shared, (), 1000, 0, 1000, 1e-3, 1000),
    ]
    assert [e.choice for e in ranked(entries, own_order)] == [shared, own_order]
    assert ranked([replace(e, side_bytes=None) for e in entries], own_order)[0].choice == own_order


def test_a_slow_cache_behind_the_l2s_holds_the_computing_up() -> None:
    gpu, case = load_profile("mi355x"), problem(seq_q=4096)
    kernel = resolve("hipkittens", case, gpu, Overrides(order="query", chiplets=1))
    fast = predict(case, kernel, gpu)
    assert fast.side is not None
    rate = fast.side.total / fast.time.total_s
    slow = predict(case, kernel, replace(gpu, memory_side_bandwidth_bytes_per_s=rate))
    assert (
        slow.time.launches[0].seconds["side"] > 0.8 * fast.time.total_s
    )  # CTAs that wait gather, and ask for less
    assert slow.time.total_s > 1.1 * max(slow.time.launches[0].seconds.values())
