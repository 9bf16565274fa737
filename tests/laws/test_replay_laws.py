"""What must hold of any replay: bytes are conserved, nothing is found that was not fetched, and the same input gives
the same result. Every line is followed in these small L2s, so the laws hold to the line (128 bytes) of each object."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import numpy as np
import pytest
from counter import count
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered import moved
from scripts import ROOT
from strategies import cases
from watched import H200, LINE, Watch, small_l2, watched

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.commands.cli import main
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Role
from iosim.kernel.schedule import Schedule, Scheduler
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.engine import L2, Ctas, TraceRecord
from iosim.readers.replay.lowering import LoweredLaunch
from iosim.readers.replay.play import Play
from iosim.readers.replay.replay import Replay
from iosim.readers.replay.templates import Template

TOO = [HealthCheck.too_slow, HealthCheck.data_too_large]
SLOW = settings(max_examples=examples(30), deadline=None, suppress_health_check=TOO)
PAIRS = [
    ("flash", "fwd"),
    ("flash", "fwd+bwd"),
    ("flash1", "fwd"),
    ("naive", "fwd+bwd"),
    ("math", "fwd"),
]
STORE = 1


def hbm(played: Replay, direction: str, *tensors: str) -> int:
    return sum(
        r.bytes
        for r in played.traffic
        if r.direction == direction and (not tensors or r.tensor in tensors)
    )


def lines_of(watch: Watch, objects: set[int]) -> int:
    assert watch.l2 is not None
    first = watch.l2.samples.first
    return sum(int(first[o + 1] - first[o]) for o in objects)


@pytest.mark.parametrize(("algorithm", "passes"), PAIRS)
@SLOW
@given(data=st.data())
def test_bytes_are_conserved(algorithm: str, passes: str, data: st.DataObject) -> None:
    """From a cold start, HBM reads are at least the touched input bytes; what is written back or still dirty is every
    stored line at least once, and at most once a store; bytes that hit and missed are the bytes accessed, where a
    miss counts whole lines."""
    problem, kernel = data.draw(cases(algorithm, passes))
    chain, played, watch = watched(
        problem, kernel, small_l2(data.draw(st.sampled_from((32, 64, 128))))
    )
    assert watch.lowered is not None
    size = watch.lowered.size.astype(np.int64)
    counted = count(chain)
    read: dict[str, set[int]] = {}
    stored: set[int] = set()
    stores = 0
    for low, hit, miss in zip(watch.lowered.launches, watch.hit, watch.miss, strict=True):
        least = highest = 0
        for template, objects in moved(low):
            if template.mode == STORE:
                pass
            else:
                least += int(size[objects].sum())
                highest += int((-(-size[objects] // LINE) * LINE).sum())
                read.setdefault(template.tensor, set()).update(objects.reshape(-1).tolist())
            if template.mode:
                stored.update(objects.reshape(-1).tolist())
                stores += int((-(-size[objects] // LINE)).sum())
        assert least <= int(hit.sum() + miss.sum()) <= highest
    for tensor in chain.role(Role.INPUT):
        touched = sorted(read.get(tensor.name, set()) - stored)
        requested_bytes = counted.total(
            "l2", "read", tensor=tensor.name
        )  # where an edge is needed, less than whole blocks
        assert hbm(played, "read", tensor.name) >= min(int(size[touched].sum()), requested_bytes)
    out = hbm(played, "write") + played.dirty_bytes
    owner = watch.lowered.owner
    least_written = (
        0  # a replay gives no more of a tensor as written than was stored, whole lines or not
    )
    for number, name in enumerate(watch.lowered.tensors):
        lines = lines_of(watch, {n for n in stored if owner[n] == number}) * LINE
        least_written += min(lines, int(counted.total("l2", "write", tensor=name)))
    assert least_written - len(chain.tensors) <= out <= stores * LINE


@pytest.mark.parametrize(("algorithm", "passes"), PAIRS)
@SLOW
@given(data=st.data())
def test_what_fits_moves_once(algorithm: str, passes: str, data: st.DataObject) -> None:
    """In an L2 that holds everything, an input is read once, to the byte, and nothing is written back. Where a launch
    needs only the edge of a block, its share of the block decides."""
    problem, kernel = data.draw(cases(algorithm, passes))
    chain, played, watch = watched(problem, kernel, small_l2(4096, 16))
    assert watch.lowered is not None
    size, counted = watch.lowered.size, count(chain)
    stored: set[int] = set()
    read: dict[str, set[int]] = {}
    blocks: dict[tuple[str, str], int] = {}
    for launch, low in zip(chain.launches, watch.lowered.launches, strict=True):
        for template, objects in moved(low):
            lines_found = set(objects.reshape(-1).tolist())
            if template.mode:
                stored |= lines_found
            else:
                key = (launch.name, template.tensor)
                blocks[key] = blocks.get(key, 0) + int(size[objects].sum())
            read.setdefault(template.tensor, set()).update(lines_found)
    for tensor in chain.role(Role.INPUT):
        whole = int(size[sorted(read.get(tensor.name, set()))].sum())
        blocks_of = {
            name: counted.total("l2", "read", launch=name, tensor=tensor.name) for name, _ in blocks
        }
        needs_edges = any(
            blocks_of[name] < n for (name, of), n in blocks.items() if of == tensor.name
        )
        least = min((n for n in blocks_of.values() if n), default=0) if needs_edges else whole
        assert (
            min(least, whole)
            <= hbm(played, "read", tensor.name)
            <= min(whole, sum(blocks_of.values()))
        )
    assert hbm(played, "write") == 0
    assert played.dirty_bytes == lines_of(watch, stored) * LINE


PROBLEM = AttentionProblem(batch=1, heads=4, seq_q=2048, head_dim=64, mask="causal", dtype="fp16")
FA = Kernel("flash", "flash", Tile(64, 64))


def summary() -> str:
    played = Call.of(PROBLEM, FA, H200).replay(Play(l2_model=small_l2(256, 8)))
    return f"{[(r.tensor, r.direction, r.bytes) for r in played.traffic]} {played.dirty_bytes} {played.seconds!r}"


def test_same_input_same_result_here_and_in_a_fresh_process() -> None:
    once = summary()
    assert summary() == once
    paths = os.pathsep.join(str(ROOT / folder) for folder in (".", "tests/support", "tests/laws"))
    command = [sys.executable, "-c", "from test_replay_laws import summary; print(summary())"]
    env = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == once


def test_the_start_of_a_chain_does_not_know_its_end() -> None:
    """The split launch moves the same bytes with its combine behind it and without.

    NB: it holds where the end changes neither how tensors are cut nor which memory is used again.
    """
    problem = AttentionProblem(batch=1, heads=4, seq_q=512, head_dim=64, dtype="fp16")
    kernel = replace(FA, splits=4)
    chain = plan(problem, kernel)
    l2 = small_l2(256, 8)
    whole = Call.of(problem, kernel, H200, chain).replay(Play(l2_model=l2))
    for n in range(1, len(chain.launches)):
        part = Call.of(problem, kernel, H200, replace(chain, launches=chain.launches[:n])).replay(
            Play(l2_model=l2)
        )
        names = {launch.name for launch in chain.launches[:n]}
        assert list(part.traffic) == [r for r in whole.traffic if r.launch in names]
        assert part.launches == whole.launches[:n]


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("stride", [0, 5])
@pytest.mark.parametrize("slots", [1, 5, 64])
def test_every_work_tile_is_played_once(slots: int, stride: int, group: int) -> None:
    """60 work tiles, each with a line of its own, in an L2 of one line: read once each, by a queue or a static list."""
    if stride and slots != stride:
        pytest.skip("a static list steps by the number of its CTAs")
    tiles = 60
    tile = np.arange(tiles, dtype=np.int32)
    zero = np.zeros(tiles, dtype=np.int32)
    loop = (Template("x", 0, tile),)
    low = LoweredLaunch(
        "x", zero, zero + 1, (), loop, (), zero.astype(np.uint8), zero, tile, group=group
    )
    l2 = L2(
        small_l2(1, 1, 1), np.full(tiles, LINE, dtype=np.int32), np.zeros(tiles, dtype=np.uint8)
    )
    start = np.full(tiles, -1, dtype=np.int64)
    sm = np.zeros(tiles, dtype=np.int32)
    record = TraceRecord(ctas=tiles, cta_sm=sm.ctypes.data, cta_start=start.ctypes.data)
    ctas = Ctas(slots, sms=4, static_stride=stride, step_s=1e-6, start_s=1e-6, sm_spread_ppm=7000)
    l2.replay(low, ctas, trace=record)
    assert (start >= 0).all()
    assert l2.counts()[0][0] == tiles * LINE


def test_a_persistent_kernel_of_whole_heads_skips_none() -> None:
    """Static lists step over whole heads where a CTA takes all key blocks of one: 300 heads on 132 SMs."""
    problem = AttentionProblem(batch=10, heads=30, seq_q=64, head_dim=16, dtype="fp16")
    kernel = Kernel(
        "flash1", "flash1", Tile(32, 32), schedule=Schedule(scheduler=Scheduler.PERSISTENT)
    )
    _, played, _ = watched(problem, kernel, small_l2(4096, 16))
    assert hbm(played, "read", "Q", "K", "V") == 3 * 300 * 64 * 16 * 2


def test_an_l2_smaller_than_a_tile_is_refused() -> None:
    with pytest.raises(InputError, match=r"holds 512 B, less than one tile of 8\.\d+ kB; accepted"):
        Call.of(PROBLEM, FA, H200).replay(Play(l2_model=small_l2(1, 4, 1)))


ARGUMENTS = ["predict", "--gpu", "h200-sxm", "--kernel", "fa2"]


def test_a_problem_too_large_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    begin = time.process_time()
    assert (
        main(
            [*ARGUMENTS, "--seq-len", "4m", "--batch", "64", "--heads", "128", "--method", "replay"]
        )
        == 2
    )
    assert time.process_time() - begin < 5
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "accepted" in error


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_a_long_replay(tmp_path: os.PathLike[str]) -> None:
    """Interrupted inside the engine: exit code 130, one line, and no file where the output would have gone."""
    out = os.path.join(tmp_path, "out.json")
    code = textwrap.dedent(f"""
        import sys, threading, time
        import iosim.readers.replay.engine as engine
        run = engine._interruptible
        def told(*arguments):
            print("in the engine", flush=True)
            return run(*arguments)
        engine._interruptible = told
        from iosim.commands.cli import main
        sys.exit(main(["predict", "--gpu", "h200-sxm", "--kernel", "fa2", "--seq-len", "256k", "--method", "replay",
                       "--format", "json",
                       "--out", {out!r}]))
    """)
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "in the engine\n"
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        _, error = child.communicate(timeout=30)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == 130
    assert error.splitlines() == ["iosim: interrupted"]
    assert os.listdir(tmp_path) == []


def hear_interrupts() -> None:
    """A child of a parent that ignores Ctrl-C, as a job in the background does, would ignore it, too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_whatever_a_signal_raises_stops_the_engine_first() -> None:
    """Timers raise while the engine plays, one after the other; what it wrote to is then given back and used anew."""
    code = textwrap.dedent("""
        import gc, signal, threading
        import numpy as np
        from iosim.readers.replay import engine
        from iosim.readers.replay.engine import L2, Ctas
        from iosim.readers.replay.l2 import model
        from iosim.hardware.profile import load_profile
        from iosim.readers.replay.lowering import LoweredLaunch
        from iosim.readers.replay.templates import Template

        class Late(Exception):
            pass

        def raise_late(*_):
            raise Late

        def scan(passes):
            zero = np.zeros(1, dtype=np.int32)
            return LoweredLaunch("scan", zero, zero + passes * 4096, (), (Template("x", 0, zero, 1),), (),
                                 zero.astype(np.uint8), zero, zero,
                                 indices=np.tile(np.arange(4096, dtype=np.int32), passes))

        def play(launch, seconds=0.0):
            l2 = L2(model(load_profile("h200")), np.full(4096, 16384, dtype=np.int32), np.zeros(4096, dtype=np.uint8))
            signal.setitimer(signal.ITIMER_REAL, seconds, 0.01)
            l2.replay(launch, Ctas(1, 1, step_s=1e-7))
            return l2.counts()[0][0]

        signal.signal(signal.SIGALRM, raise_late)
        caught, long = 0, scan(20_000)
        for seconds in (0.1, 0.2, 0.3, 0.4):
            try:
                play(long, seconds)
            except Late:
                caught += threading.active_count() == 1
            while True:  # the timer goes on until it is stopped
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    break
                except Late:
                    pass
            gc.collect()
            junk = [np.full(100_000, 7, dtype=np.int64) for _ in range(50)]
        print(caught, play(scan(1)))
    """)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"4 {4096 * 16384}\n"
