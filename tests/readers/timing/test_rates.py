"""Rates at which a kernel's warps issue: narrow builds, keys shared out among warps, keys that end."""

from __future__ import annotations

from dataclasses import replace

from steps import step_cost
from timed_launches import call

from iosim.kernel.unit import UNITS, MatrixUnit
from iosim.readers.timing.rates import SmRates, Waits


class TestKeysAmongWarps:
    def test_warps_that_divide_the_keys_repeat_no_rows(self) -> None:
        """cuDNN decodes with 16 rows on four warps, each with a quarter of the keys; else each row would be done in
        four warps, and each warp would fetch all keys."""
        launch = call("h200", "cudnn", heads=264, seq_q=1, seq_k=4096).chain.launches[0]
        assert (launch.domain.block_q, launch.work.loop.key_warps) == (16, 4)
        rates = SmRates(Waits(*[0.0] * 6), 1e9, 1024.0, 128.0, 16.0, 128.0, 64.0)
        whole = replace(
            launch, work=replace(launch.work, loop=replace(launch.work.loop, key_warps=1))
        )
        divided, repeated = (
            step_cost(narrow_launch, UNITS[MatrixUnit.MMA_SYNC], rates, 0.0, 2, 90)
            for narrow_launch in (launch, whole)
        )
        assert repeated.tensor == 4 * divided.tensor == 4 * 16 * 128 * 512 / 1024
        assert divided.smem * 128 == 128 * 512 + 4 * (
            26 * 128 + 16 * 256
        )  # K and V once; idle wavefronts, Q by each


class TestNarrowBuilds:
    def test_each_copy_has_instructions_of_its_own(self) -> None:
        """A build of 64 columns, 128 keys, 4 warps: 8 copies a thread of K and of V, each with 3 idle loads and 4
        stores of zeros; twice that is issued, 4 instructions a cycle."""
        narrow, whole = (call("h100", head_dim=n).chain.launches[0] for n in (56, 64))
        assert narrow.work.fragments is not None
        assert whole.work.fragments is not None
        assert (narrow.work.fragments.step, whole.work.fragments.step) == (2 * 8 * 7, 6)
        rates = SmRates(Waits(*[0.0] * 6), 1e9, 1024.0, 128.0, 16.0, 128.0, 64.0)
        costs = [
            step_cost(launch_here, UNITS[MatrixUnit.MMA_SYNC], rates, 0.0, 2, 90)
            for launch_here in (narrow, whole)
        ]
        assert costs[0].softmax - costs[1].softmax == 2 * (112 - 6) * 4 / 4
        assert costs[0].smem - costs[1].smem == 4 * (112 - 6)  # a wavefront of each warp


class TestKeysThatEnd:
    def test_cudnn_asks_of_every_score_whether_its_key_is_there(self) -> None:
        """Three lane cycles, of a window and past the last key; the causal diagonal is asked in a tile's last step
        alone, one query never."""
        diagonal = call("h100", "cudnn", mask="causal").chain.launches[0].work.mask
        assert (diagonal.every_step, diagonal.edge_steps) == (0, 4)
        operations = {
            (problem.get("mask", "none"), seq_k, seq_q): call(
                "h100", "cudnn", seq_q=seq_q, seq_k=seq_k, **problem
            )
            .chain.launches[0]
            .work.mask.every_step
            for problem, seq_k, seq_q in (
                ({}, 4096, 128),
                ({}, 4095, 128),
                ({"mask": "causal"}, 4095, 4095),
                ({}, 4095, 1),
                ({"mask": "window", "window": 512}, 4096, 4096),
            )
        }
        assert operations == {
            ("none", 4096, 128): 0,
            ("none", 4095, 128): 3,
            ("causal", 4095, 4095): 0,
            ("none", 4095, 1): 0,
            ("window", 4096, 4096): 3,
        }
