"""Terms of a launch: nodes of a graph, what a kernel states, the clock of light loads."""

from __future__ import annotations

import pytest
from timed_launches import call, main_launch

from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.conditions import Conditions
from iosim.kernel.launch import is_attention_loop
from iosim.kernel.unit import MatrixUnit
from iosim.kernel.work import Loop
from iosim.problem.attention import AttentionProblem


class TestNodesOfAGraph:
    def test_a_memset_before_a_queue_takes_a_node(self) -> None:
        """As nodes of captured calls were counted: cuDNN's prefill has one, its decoding none."""
        started = {}
        for kernel, seq_q in (("cudnn", 128), ("fa2", 128), ("cudnn", 1)):
            queued = call("h100", kernel, heads=264, seq_q=seq_q, seq_k=2048)
            for launched in ("graph", "alone"):
                launch = queued.time(queued.counted, Conditions(launched=launched)).launches[0]
                started[kernel, seq_q, launched] = launch.parts["start"]
        without = started["fa2", 128, "graph"]
        two = 2 * (687 + 80) / 1.98e9  # warps that divide the keys wait for them
        assert started["cudnn", 128, "graph"] == pytest.approx(without + 0.94e-6)
        assert started["cudnn", 1, "graph"] == pytest.approx(without + two)
        assert started["cudnn", 128, "alone"] == pytest.approx(started["fa2", 128, "alone"])


class TestWhatAKernelStates:
    @pytest.mark.parametrize("passes", ["fwd", "bwd"])
    def test_multiply_adds_are_no_tensor_cores_in_either_pass(self, passes: str) -> None:
        problem = AttentionProblem(heads=8, seq_q=4096, head_dim=128, dtype="bf16", passes=passes)
        kernel = resolve("flash", problem, load_profile("h200")).with_(matrix_unit=MatrixUnit.FP32)
        (loop,) = (launch for launch in plan(problem, kernel).launches if is_attention_loop(launch))
        assert not loop.work.tensor_cores

    def test_every_forward_walks_as_its_kernel_says(self) -> None:
        problem = AttentionProblem(
            heads=16,
            kv_heads=1,
            seq_q=1,
            seq_k=4096,
            head_dim=576,
            head_dim_v=512,
            dtype="bf16",
            latent_kv=True,
        )
        kernel = resolve("mla", problem, load_profile("h200")).with_(
            loop=Loop(score_operations=2.0)
        )
        assert plan(problem, kernel).launches[0].work.loop == kernel.loop


class TestClockOfLightLoads:
    def test_decoding_runs_at_the_boost_clock_and_prefill_slower(self) -> None:
        profile = load_profile("l40s")
        decode = main_launch(call("l40s", seq_q=1, seq_k=65536, batch=16))
        prefill = call("l40s", heads=32, seq_q=8192)
        boost, sustained = (
            prefill.time(prefill.counted, Conditions(clocks=clocks))
            for clocks in ("boost", "sustained")
        )
        assert decode.clock_hz == profile.boost_clock_hz
        clocks = [chain_time.launches[0].clock_hz or 0.0 for chain_time in (sustained, boost)]
        assert clocks[0] < 0.95 * clocks[1] < 0.95 * profile.need("boost_clock_hz")
