"""The time of a launch: passes over tensors, and CTAs that take turns."""

from __future__ import annotations

import math

import pytest
from timed_launches import call, main_launch

from iosim.kernel.work import Loop
from iosim.readers.timing.launch_time import LaunchTime


class TestPasses:
    """What surrounds FlashAttention-2's backward: threads wait for loads, one behind the other, in every round."""

    def seconds(self, name: str, **problem: object) -> float:
        whole_call = call("h200", passes="bwd", **problem)
        times = whole_call.time(whole_call.counted + whole_call.capacity()).launches
        return next(time.total_s for time in times if time.name == name)

    def test_a_short_one_takes_its_threads_chain(self) -> None:
        start, load = 2.1e-6 + 2 * 762 / 1.98e9, 762 / 1.98e9
        problem = {"heads": 1, "seq_q": 64, "seq_k": 64}
        convert = self.seconds(
            "bwd.convert", **problem
        )  # 32 values a thread, four at a time, found in the L2
        assert start < convert < start + 8 * load
        assert self.seconds("bwd.copy0", **problem | {"heads": 2}) == pytest.approx(
            start + 4 * load, rel=0.02
        )

    def test_a_fill_waits_for_no_load(self) -> None:
        zeroing = call("h100", "flex", heads=1, seq_q=128)  # zeros two lists of its blocks first
        fill = zeroing.time(zeroing.counted).launches[0]
        assert (fill.name, fill.parts["start"]) == ("fill0", 2.6e-6)

    def test_each_round_waits_anew(self) -> None:
        """512 sums a CTA and nine CTAs an SM: 1,188 are a round."""
        first, two = (
            self.seconds("bwd.sum_dK", heads=4, kv_heads=2, seq_q=1, seq_k=n)
            for n in (1188 * 2, 1189 * 2)
        )
        assert two - first == pytest.approx(
            8 * 762 / 1.98e9, rel=0.5
        )  # less what the bytes of a round take meanwhile


class TestTurns:
    """Kernels whose loads nothing hides: naive.cu, flash_bwd_rows, minimal.cu, with their bytes in the L2."""

    LOAD = 287 * (1 + 476 / 265) / 2 + 80  # an H200's L2, near and far, its address and a barrier

    def launches(self, kernel: str, **problem: object) -> dict[str, LaunchTime]:
        whole_call = call("h200-sxm", kernel, **{"seq_q": 512, "head_dim": 64, **problem})
        return {launch.name: launch for launch in whole_call.time(whole_call.counted).launches}

    @pytest.mark.parametrize(
        ("launch", "heads", "loads", "lanes", "wavefronts", "instructions", "ctas", "rounds"),
        [
            # a tile of 64 x 64 x 64: 16 loads, 64^3 / 128 multiply-adds, 2 x 2,176 wavefronts; 128 CTAs, one an SM
            ("scores", 2, 16, 2048, 4352, 8 * (385 + 2 * 1170), 1, 1),
            # 8 x 64 tiles: 396 CTAs run, three an SM, then 116, one an SM
            ("scores", 8, 16, 2048, 4352, 8 * (385 + 2 * 1170), 3, 1 + 1j),
            # 16 steps of 32 keys, 8 loads each; 64 CTAs
            ("values", 8, 128, 16 * 1024, 16 * 2176, 8 * (266 + 16 * 1290), 1, 1),
            # two scores a thread, loaded at once; 1,024 rows, 8 CTAs an SM
            ("softmax", 2, 1, 0, 0, 8 * (220 + 2 * 18), 8, 1),
        ],
    )
    def test_waits_of_a_cta_overlap_what_others_issue(
        self,
        launch: str,
        heads: int,
        loads: int,
        lanes: int,
        wavefronts: int,
        instructions: int,
        ctas: int,
        rounds: complex,
    ) -> None:
        launch_time = self.launches("naive-cu", heads=heads)[launch]
        alone = loads * self.LOAD + lanes + wavefronts
        full = math.hypot(alone, ctas * instructions / 4)
        last = math.hypot(alone, instructions / 4) * rounds.imag
        assert (launch_time.total_s - launch_time.parts["start"]) * 1.98e9 == pytest.approx(
            full + last, rel=2e-3
        )

    def test_row_sums_wait_twice_in_every_round(self) -> None:
        """8 x 4,096 rows, 8 a CTA and 6 CTAs an SM: 5 rounds of 792 CTAs, then 136, two an SM; two loads, 64
        instructions a warp."""
        bwd_dot = self.launches("flash-cu", seq_q=4096, passes="bwd")["bwd.dot"]
        six, two = (math.hypot(2 * self.LOAD, n * 8 * 64 / 4) for n in (6, 2))
        assert (bwd_dot.total_s - bwd_dot.parts["start"]) * 1.98e9 == pytest.approx(
            5 * six + two, rel=2e-3
        )

    def test_a_lone_warp_waits_for_each_column_of_o(self) -> None:
        """16 x 16 pairs of blocks, each with a load a column, and 32 scores of 64 multiply-adds, 4 cycles from one to
        the next, less the issue of as many that pass during the loads."""
        fp32_call = call("h200-sxm", "minimal-cu", seq_q=512, head_dim=64, dtype="fp32")
        loop = Loop(loads_ahead=False)
        waits = (
            main_launch(fp32_call, hbm=False).total_s
            - main_launch(fp32_call, hbm=False, loop=loop).total_s
        )
        assert waits * 1.98e9 == pytest.approx(256 * (64 * self.LOAD + 32 * 64 * 3 - 32 * 64))
