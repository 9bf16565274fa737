"""engine.wasm, the engine for browsers, is of today's sources and finds what the compiled engine finds, bit for bit:
bytes, ends, CTAs, hits and misses over time, and what the L2 holds.

It is made by `python iosim/readers/replay/build.py --wasm`, which needs the package ziglang, and is committed.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from base64 import b64encode
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iosim.base.errors import InputError
from iosim.prediction.call import Call
from iosim.prediction.predictor import planned
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay import build, library
from iosim.readers.replay.engine import MAX_TENSORS, TraceRecord
from iosim.readers.replay.packed import layouts, packed
from iosim.readers.replay.replay import Replay
from iosim.show.html import STATIC

NODE = shutil.which("node")
PLAYER = Path(__file__).resolve().parents[1] / "support" / "replays.js"
needs_node = pytest.mark.skipif(NODE is None, reason="Node is not installed")
PAGE_SIZES = (None, None, None, 16)
KERNELS = (
    "fa1",
    "fa2",
    "fa3",
    "fa4",
    "cudnn",
    "cutlass",
    "default",
    "flash",
    "flash1",
    "flashinfer",
    "flex",
    "math",
    "naive",
    "triton",
)
GPUS = ("v100", "t4", "a100", "a10", "l4", "l40s", "h100", "h200", "b200", "rtx-4090")


def test_it_is_of_these_sources() -> None:
    assert build.is_current(build.WASM), (
        "python iosim/readers/replay/build.py --wasm, with ziglang installed"
    )
    assert build.WASM.stat().st_size < 100_000


def test_the_one_for_a_python_in_a_browser_is_of_these_sources_too() -> None:
    """A library that shares Python's memory: it brings none of its own, and asks the C library of Python alone."""
    assert build.is_current(build.SIDE), (
        "python iosim/readers/replay/build.py --wasm, with ziglang installed"
    )
    assert build.SIDE.stat().st_size < 100_000
    text = build.SIDE.read_bytes()
    assert text[8:18] == b"\x00" + text[9:10] + b"\x08dylink.0"[:8]
    assert b"iosim_tick" not in text


@needs_node
def test_it_asks_for_nothing_but_memory_and_sorting() -> None:
    script = (
        "WebAssembly.compile(require('fs').readFileSync(process.argv[1])).then((m) => console.log(JSON.stringify("
        "[WebAssembly.Module.imports(m), WebAssembly.Module.exports(m)].map((all) => all.map((x) => x.name).sort()))))"
    )
    done = subprocess.run(
        [str(NODE), "-e", script, str(build.SIDE)], capture_output=True, text=True, check=True
    )
    imports, exports = json.loads(done.stdout)
    assert [name for name in imports if not name.startswith("__")] == [
        *("calloc", "free", "malloc", "memory", "qsort"),
    ]
    wanted = re.findall(r"opened\.(iosim_\w+)\.", Path(library.__file__).read_text())
    assert {*wanted} <= {*exports}


def played(calls: list[Call], wasm: Path = build.WASM) -> list[dict[str, Any]]:
    """What engine.wasm finds of each call."""
    data = []
    for call in calls:
        chain, streams, gpu = packed(call.replay_inputs())
        data.append(
            {"chain": chain, "streams": [b64encode(s).decode() for s in streams], "gpu": gpu}
        )
    text = json.dumps({"layouts": layouts(), "calls": data})
    command = [str(NODE), str(PLAYER), str(STATIC / "explore" / "engine.js"), str(wasm)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    replies: list[dict[str, Any]] = json.loads(done.stdout)
    return replies


class Watch:
    """A trace as the page takes it, of the compiled engine."""

    def __init__(self, bin_ps: int, bins: int) -> None:
        self.bin_ps, self.bins = bin_ps, bins
        self.hit, self.miss, self.kept = np.zeros((3, bins, MAX_TENSORS), dtype=np.int64)
        self.ctas: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.records: list[Any] = []
        self.names: list[str] = []

    def __call__(self, launch: Any, low: Any, lowered: Any, l2: Any, begin_ps: int) -> Any:
        del launch, l2, begin_ps
        self.names = [*lowered.tensors, "others"]
        sm, start, end = np.zeros(low.tiles, np.int32), *np.zeros((2, low.tiles), np.int64)
        self.ctas.append((sm, start, end))
        kept_before = self.records[-1].kept if self.records else 0
        self.records.append(
            TraceRecord(
                bin_ps=self.bin_ps,
                bins=self.bins,
                ctas=low.tiles,
                bin_hit=self.hit.ctypes.data,
                bin_miss=self.miss.ctypes.data,
                bin_kept=self.kept.ctypes.data,
                kept=kept_before,
                cta_sm=sm.ctypes.data,
                cta_start=start.ctypes.data,
                cta_end=end.ctypes.data,
            )
        )
        return self.records[-1]


def same(call: Call, data: dict[str, Any]) -> None:
    """That the compiled engine finds the same of a call."""
    watch = Watch(data["bin_ps"], 1024)
    native: Replay = call.replay(trace=watch)
    assert sorted(map(tuple, data["rows"])) == sorted(
        (r.launch, r.tensor, r.direction, r.bytes) for r in native.traffic
    )
    assert data["end"] / 1e12 == native.seconds
    for launch, printed, (sm, start, end) in zip(
        data["launches"], native.launches, watch.ctas, strict=True
    ):
        assert (launch["name"], launch["begin"] / 1e12, launch["end"] / 1e12) == (
            printed.name,
            printed.begin_s,
            printed.end_s,
        )
        assert (launch["sm"], launch["starts"], launch["ends"]) == (
            sm.tolist(),
            start.tolist(),
            end.tolist(),
        )
    assert data["kept_bins"] == watch.records[-1].kept
    for kind, values in (("hit", watch.hit), ("miss", watch.miss), ("kept", watch.kept)):
        for n, tensor in enumerate(watch.names):
            assert data[kind][tensor] == values[: data["bins"], n].tolist(), (kind, tensor)


def drawn(seed: int) -> Call:
    """A call of any kernel on any GPU that runs it, small enough to be played at once."""
    rng = random.Random(seed)
    while True:
        kv_heads = rng.choice((1, 2, 4))
        queries = rng.randint(1, 1500)
        mask = rng.choice(("none", "none", "causal", "causal", "window", "strided"))
        try:
            problem = AttentionProblem(
                batch=rng.choice((1, 2)),
                heads=kv_heads * rng.choice((1, 2, 4)),
                kv_heads=kv_heads,
                seq_q=queries,
                seq_k=rng.choice((queries, rng.randint(1, 1500))),
                head_dim=rng.choice((32, 64, 80, 128)),
                dtype=rng.choice(("fp16", "bf16")),
                mask=mask,
                window=rng.randint(0, 400) if mask == "window" else None,
                passes=rng.choice(("fwd", "fwd", "bwd", "fwd+bwd")),
                page_size=rng.choice(PAGE_SIZES),
            )
            return planned(problem, rng.choice(KERNELS), rng.choice(GPUS))
        except InputError:
            continue


def test_what_the_l2_holds_is_what_was_touched_and_fits() -> None:
    """512 tokens in 50 MiB: of K, V and O all, whichever sides have them; others' dirty lines before anything else."""
    call = planned(AttentionProblem(heads=8, seq_q=512, head_dim=128), "flash", "h100")
    watch = Watch(10**6, 1024)
    call.replay(trace=watch)
    held = dict(zip(watch.names, watch.kept.T.tolist(), strict=False))
    last = int(watch.records[-1].kept) - 1
    tensor = 8 * 512 * 128 * 2
    assert {name for name, bytes_ in held.items() if bytes_[0]} == {"others"}
    for name in "KV":
        assert 0.9 * tensor < held[name][last] < 2.1 * tensor
    assert watch.kept.sum(axis=1).max() <= 50 << 20
    assert not watch.kept[last + 1 :].any()


@needs_node
@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 150), marks=pytest.mark.slow)])
def test_bit_for_bit_what_the_compiled_engine_finds(seeds: range) -> None:
    calls = [drawn(seed) for seed in seeds]
    for call, data in zip(calls, played(calls), strict=True):
        same(call, data)


@needs_node
@pytest.mark.slow
def test_long_launches_too_with_progress() -> None:
    long = [
        AttentionProblem(heads=32, kv_heads=8, seq_q=n, head_dim=128, mask="causal")
        for n in (8192, 16384)
    ]
    calls = [planned(problem, "fa2", gpu) for problem in long for gpu in ("a100", "h100", "l40s")]
    for call, data in zip(calls, played(calls), strict=True):
        same(call, data)
        assert data["shares"] == sorted(data["shares"])
        assert data["shares"][0] > 0
        assert data["shares"][-1] <= 1


@needs_node
@pytest.mark.slow
@pytest.mark.skipif(find_spec("ziglang") is None, reason="ziglang is not installed")
def test_one_made_now_finds_the_same(tmp_path: Path) -> None:
    build.compile_wasm(tmp_path / "engine.wasm")
    calls = [drawn(seed) for seed in range(12)]
    for call, data in zip(calls, played(calls, tmp_path / "engine.wasm"), strict=True):
        same(call, data)


def test_without_the_compiler_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "find_spec", lambda _: None)
    with pytest.raises(build.BuildError, match="ziglang"):
        build.compile_wasm(tmp_path / "engine.wasm")
    assert not any(tmp_path.iterdir())
