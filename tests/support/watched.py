"""Replays that are watched: what a small L2 holds and misses, launch by launch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from unittest.mock import patch

import numpy as np

from iosim.catalog.algorithms import plan
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain, Launch
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay import engine
from iosim.readers.replay.engine import L2, MAX_TENSORS, TraceRecord
from iosim.readers.replay.l2 import L2Model, model, sample_lines
from iosim.readers.replay.lowering import Lowered, LoweredLaunch
from iosim.readers.replay.play import Play
from iosim.readers.replay.replay import Replay

LINE = 128
H200 = load_profile("h200-sxm")


def small_l2(sets: int, ways: int = 4, partitions: int = 2) -> L2Model:
    return replace(
        model(H200),
        sets=sets,
        ways=ways,
        partitions=partitions,
        dirty_ways=ways,
        foreign_dirty_bytes=0,
        launch_fetch_bytes=0,
    )


@dataclass
class Watch:
    """Keeps what a replay shows of itself, and the bytes that hit and missed."""

    l2: L2 | None = None
    lowered: Lowered | None = None
    hit: list[np.ndarray] = field(default_factory=list)
    miss: list[np.ndarray] = field(default_factory=list)

    def __call__(
        self, launch: Launch, low: LoweredLaunch, lowered: Lowered, l2: L2, begin: int
    ) -> TraceRecord:
        self.l2, self.lowered = l2, lowered
        self.hit.append(np.zeros(MAX_TENSORS, dtype=np.int64))
        self.miss.append(np.zeros(MAX_TENSORS, dtype=np.int64))
        return TraceRecord(
            bin_ps=1, bins=1, bin_hit=self.hit[-1].ctypes.data, bin_miss=self.miss[-1].ctypes.data
        )


def watched(problem: AttentionProblem, kernel: Kernel, l2: L2Model) -> tuple[Chain, Replay, Watch]:
    watch = Watch()
    kernel = replace(kernel, packs_group=kernel.packs_group and not problem.backward)
    chain = plan(problem, kernel)
    with patch.object(
        engine, "sample_lines", lambda model, size, *_: sample_lines(model, size, 1e9)
    ):
        played = Call.of(problem, kernel, H200, chain).replay(Play(l2_model=l2), trace=watch)
    assert watch.l2 is not None
    assert int(watch.l2.config.sample_bytes) == LINE
    return chain, played, watch
