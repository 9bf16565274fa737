"""What a command may take of memory and time: bounds that are said, archives that are not unpacked beyond them."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripts import ROOT

from iosim import InputError, load_profile, predict
from iosim.base.errors import TooLargeError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.commands.cli import main
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.schedule import Order
from iosim.prediction.predictor import Request, planned
from iosim.prediction.replays import Replays, head_share_of, tile_accesses
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.files import load_block_mask
from iosim.readers.replay.lowering import lower
from iosim.readers.replay.objects import about_bytes, tile_bytes
from iosim.readers.replay.play import DEEPEST, ERROR, SHARED_BYTES, Play, head_share

MEASURED = """
import resource, sys
from iosim.commands.cli import main
code = main(sys.argv[1:])
print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, file=sys.stderr)
"""


def peak_bytes(*words: str) -> int:
    """Peak memory of a command that must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *words], capture_output=True, text=True, timeout=300
    )
    code, peak = done.stderr.split()[-2:]
    assert code == "0", done.stderr
    return int(peak)


def tiny_l2(tmp_path: Path) -> str:
    """A profile with 256 KiB of L2."""
    text = (ROOT / "hardware_profiles" / "a100-sxm-80gb.toml").read_text()
    text = re.sub(
        r"aliases = .*\n",
        "",
        re.sub(r"l2_bytes = \{ value = [\d_]+", "l2_bytes = { value = 262144", text),
    )
    path = tmp_path / "tiny.toml"
    path.write_text(text.replace('name = "a100-sxm-80gb"', 'name = "tiny"'))
    return str(path)


@contextmanager
def allocated_below(limit: float) -> Iterator[None]:
    """What is allocated inside takes at most so many bytes at once."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit


# Replays.


@pytest.mark.slow
def test_long_chains_over_score_matrices_stay_below_2_gb() -> None:
    """1.24 TB of tensors: 28 million objects, and as many followed lines."""
    assert peak_bytes("predict", "--kernel", "naive", "--seq-len", "96k") < 2e9


@pytest.mark.slow
def test_a_small_l2_takes_no_more_memory_than_a_large_one(tmp_path: Path) -> None:
    """Every eighth line would be followed: 2.4 billion of them."""
    assert (
        peak_bytes("predict", "--gpu", tiny_l2(tmp_path), "--kernel", "math", "--seq-len", "64k")
        < 2e9
    )


@pytest.mark.slow
def test_a_replay_of_gigabytes_is_refused_and_the_default_does_without(tmp_path: Path) -> None:
    problem = AttentionProblem(heads=32, seq_q=1 << 16, head_dim=128)
    gpu = load_profile(tiny_l2(tmp_path))
    with pytest.raises(TooLargeError, match="followed lines"):
        predict(problem, "math", gpu, method="replay")
    prediction = predict(problem, "math", gpu)
    assert prediction.method == "capacity"
    assert any("followed lines" in note for note in prediction.notes)


@pytest.mark.slow
def test_a_warm_start_that_would_take_gigabytes_is_estimated() -> None:
    problem = AttentionProblem(heads=32, seq_q=3 << 15, head_dim=128)
    with pytest.raises(TooLargeError, match="objects of memory"):
        predict(problem, "naive", "a100", l2_start="warm", method="replay")
    warm, cold = (predict(problem, "naive", "a100", l2_start=start) for start in ("warm", "cold"))
    assert warm.method != "replay"
    assert warm.total("hbm", "read") == pytest.approx(
        cold.total("hbm", "read"), rel=0.01
    )  # nothing of it fits


def problem_of(thousand_tokens: int, **sizes: Any) -> AttentionProblem:
    return AttentionProblem(
        **{"heads": 32, "seq_q": thousand_tokens << 10, "head_dim": 128, **sizes}
    )


@pytest.mark.parametrize("gpu", ["a100", "h200", "l4"])
@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        ("naive", problem_of(16)),
        ("math", problem_of(16, heads=8, mask="causal")),
        ("naive", problem_of(16, heads=8, kv_heads=4, batch=2, passes="bwd")),
    ],
    ids=["naive", "math", "backward"],
)
@pytest.mark.slow
def test_some_heads_stand_for_all(
    gpu: str, kernel: str, problem: AttentionProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = planned(problem, kernel, gpu)
    accesses = tile_accesses(call.chain)
    monkeypatch.setattr("iosim.readers.replay.play.PLAYED_ACCESSES", accesses // 4)
    share = head_share(call.chain, accesses, l2_bytes=1)
    assert share is not None
    assert share.of == problem.batch * problem.heads == 4 * share.heads
    whole = call.replay()
    some = call.replay(Play(share=share))
    for direction in ("read", "write"):
        assert some.traffic.total("hbm", direction) == pytest.approx(
            whole.traffic.total("hbm", direction), rel=ERROR
        )
    assert sum(launch.accesses for launch in some.launches) == sum(
        launch.accesses for launch in whole.launches
    )
    assert f"{share.heads} of {share.of} heads" in " ".join(some.notes())


def test_long_groups_are_played_in_deeper_steps() -> None:
    """Eager attention over 88,838 tokens in groups of four heads, both passes: 18.4 million blocks took 1.2 GB. In steps
    of 128 the two matrices that products walk both ways have a quarter as many; shorter calls stay as they are."""
    long = problem_of(1, heads=32, kv_heads=8, seq_q=88838, mask="causal", passes="fwd+bwd")
    share = head_share_of(planned(long, "eager-transformers", "a10"))
    assert share is not None
    assert (share.heads, share.depth) == (4, 2)
    assert about_bytes(share.chain) < SHARED_BYTES
    assert tile_accesses(share.chain) < 0.7 * share.heads / share.of * tile_accesses(
        planned(long, "eager-transformers", "a10").chain
    )
    for tokens in (16, 64):
        share = head_share_of(planned(problem_of(tokens, heads=32), "naive", "a10"))
        assert share is None or share.depth == 1


def test_deeper_steps_move_as_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    call = planned(problem_of(8, heads=8, kv_heads=4, passes="fwd+bwd"), "naive", "a10")
    accesses = tile_accesses(call.chain)
    shares = []
    for most in (SHARED_BYTES, 0):
        monkeypatch.setattr("iosim.readers.replay.play.PLAYED_ACCESSES", accesses // 4)
        monkeypatch.setattr("iosim.readers.replay.play.SHARED_BYTES", most)
        share = head_share(call.chain, accesses, l2_bytes=1)
        assert share is not None
        shares.append(share)
    assert [share.depth for share in shares] == [1, DEEPEST]
    fine, deep = (call.replay(Play(share=share)).traffic for share in shares)
    for direction in ("read", "write"):
        assert deep.total("hbm", direction) == pytest.approx(
            fine.total("hbm", direction), rel=ERROR
        )


@pytest.mark.parametrize(("kernel", "tokens"), [("naive", 192), ("math", 128)])
@pytest.mark.slow
def test_score_matrices_too_large_for_a_replay_are_sampled(kernel: str, tokens: int) -> None:
    p = predict(problem_of(tokens), kernel, "a100")
    assert p.method == "sampled"
    assert any("stand for all" in note for note in p.notes)
    bounds = p.hbm_bounds
    assert bounds.compulsory_read < p.total("hbm", "read") < bounds.no_l2_read


@pytest.mark.slow
def test_96_thousand_tokens_are_predicted_as_all_heads_are() -> None:
    """All 32 heads in 4.8 GB of memory: 1.892 TB. The capacity rule: 1.241 TB."""
    by_default, by_request = (
        predict(problem_of(96), "naive", "a100", method=method) for method in (None, "sampled")
    )
    assert by_default.total("hbm", "read") == pytest.approx(1.892e12, rel=ERROR)
    assert (by_request.method, by_request.traffic, by_request.notes) == (
        by_default.method,
        by_default.traffic,
        by_default.notes,
    )


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        ("fa2", problem_of(64)),  # no tensor of a head outgrows the L2
        ("naive", problem_of(96, heads=1)),  # one head is all
        ("naive", problem_of(1024)),
    ],  # one head takes a minute
    ids=["small tensors", "one head", "long heads"],
)
def test_heads_that_cannot_stand_for_all(kernel: str, problem: AttentionProblem) -> None:
    assert head_share_of(planned(problem, kernel, "a100")) is None


def test_heads_side_by_side_do_not_stand_for_all() -> None:
    chain = planned(problem_of(32), "naive", "a100").chain
    assert head_share(chain, tile_accesses(chain), 1) is not None
    fast = tuple(
        replace(launch, schedule=replace(launch.schedule, order=Order.HEAD))
        for launch in chain.launches
    )
    assert head_share(replace(chain, launches=fast), tile_accesses(chain), 1) is None


# What is said before, and refused before it is computed.


def test_a_long_explanation_says_so_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def begun(*_: object, **__: object) -> None:
        raise InputError("begun")

    monkeypatch.setattr("iosim.prediction.predictor.Request.predict", begun)
    for command in ("explain", "trace"):
        assert (
            main([command, "--seq-len", "192k"]) == 2
        )  # 32 heads x 1,536 x 3,072 tiles of K, V and spilled words
        first, last = capsys.readouterr().err.splitlines()
        assert re.search(r"\d{3},\d{3},\d{3} accesses to replay, some \d{2} s", first), first
        assert "begun" in last
        assert main([command, "--seq-len", "4k"]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", ["explain", "trace"])
@pytest.mark.parametrize(
    ("options", "reason"),
    [("--seq-len 1m", "takes too long"), ("--kernel naive --seq-len 64k --gpu {}", "followed")],
)
def test_nothing_is_lowered_or_played_that_is_refused(
    command: str,
    options: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def lowered(*_: object) -> None:
        raise AssertionError("a launch was lowered")

    monkeypatch.setattr("iosim.readers.replay.lowering._lower_launch", lowered)
    assert main([command, *options.format(tiny_l2(tmp_path)).split()]) == 2
    assert reason in capsys.readouterr().err


def test_lowering_shows_bars_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("iosim.base.progress.AFTER_S", 0.0)
    predict(problem_of(2, heads=2), "naive", "a100", method="replay")
    err = capsys.readouterr().err
    for heading in (
        "cutting tensors into objects",
        "work tiles of scores",
        "work tiles of softmax",
    ):
        assert heading in err, heading


def test_the_bar_of_a_replay_moves_while_all_work_tiles_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """128 work tiles on 132 SMs are taken at once; each walks 16,384 key blocks."""
    counts: list[int] = []

    @contextmanager
    def counter(total: int, task: str, unit: str, after_s: float) -> Iterator[Any]:
        assert (total, unit) == (128, "tile")
        yield counts.append

    monkeypatch.setattr("iosim.readers.replay.engine.counter", counter)
    monkeypatch.setattr("iosim.readers.replay.engine.AFTER_S", 0.0)
    monkeypatch.setattr("iosim.readers.replay.engine.BAR_EVERY_S", 0.002)
    problem = AttentionProblem(heads=1, seq_q=16384, seq_k=1 << 20, head_dim=128)
    Request(problem, "fa2", "h100", method="replay").predict(Replays())
    assert counts == sorted(counts)
    assert len({n for n in counts if 0 < n < 128}) > 3


def test_lowering_a_launch_takes_the_memory_that_is_estimated() -> None:
    problem = AttentionProblem(heads=8, seq_q=1 << 15, head_dim=128)
    chain = plan(problem, resolve("naive", problem, load_profile("a100")))
    lowered = lower(chain, 8)
    for n in range(len(chain.launches)):
        single = replace(chain, launches=(chain.launches[n],))
        with allocated_below(tile_bytes(single) + 20e6):
            low = lowered.launches[n]
        assert low.tiles > 0


@pytest.mark.slow
def test_many_small_ctas_of_a_pass_cost_no_more_than_their_number() -> None:
    """2-byte objects: hundreds of thousands of loads of a pass are under way on an SM."""
    problem = AttentionProblem(
        heads=32, seq_q=256, bias="full", bias_shared="both", bias_grad=True, passes="bwd"
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    predict(problem, Kernel("small", "flash", Tile(1, 1)), "a100", method="replay")
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 20
    )  # 2.6 s; their square would be minutes


# Archives.


def bomb(path: Path, name: str, megabytes: int, *, header: tuple[int, ...] | None = None) -> str:
    """An archive with a small mask and `megabytes` of zeros in the member `name`."""
    np.savez(
        path, **({} if name == "mask" else {"mask": np.ones((2, 2), dtype=bool)}), BLOCK_SIZE=8
    )
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open(f"{name}.npy", "w") as member,
    ):
        shape = header or (megabytes << 20,)
        np.lib.format.write_array_header_1_0(
            member, {"descr": "|b1", "fortran_order": False, "shape": shape}
        )
        for _ in range(megabytes):
            member.write(bytes(1 << 20))
    return str(path)


def test_members_that_no_mask_needs_are_not_unpacked(tmp_path: Path) -> None:
    path = bomb(tmp_path / "unused.npz", "other", 100)
    with allocated_below(5e6):
        load_block_mask(path, 16, 16)


@pytest.mark.slow
@pytest.mark.parametrize("header", [None, (1 << 50,), (1 << 30, 1 << 30), (3,)])
def test_a_member_is_bounded_before_it_is_unpacked(
    header: tuple[int, ...] | None, tmp_path: Path
) -> None:
    path = bomb(tmp_path / "mask.npz", "mask", 513 if header is None else 20, header=header)
    with allocated_below(5e6), pytest.raises(InputError, match=r"^mask_file"):
        load_block_mask(path, 16, 16)


def _encrypted(path: Path) -> None:
    np.savez(path, mask=np.ones((2, 2), dtype=bool), BLOCK_SIZE=8)
    data = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := data.find(signature, at + 1)) >= 0:
            data[at + flags] |= 1
    path.write_bytes(data)


def _exotic(path: Path) -> None:
    """A compression that Python does not know."""
    np.savez(path, mask=np.ones((2, 2), dtype=bool), BLOCK_SIZE=8)
    data = bytearray(path.read_bytes())
    for signature, method in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = -1
        while (at := data.find(signature, at + 1)) >= 0:
            data[at + method] = 97
    path.write_bytes(data)


def _packed(kind: int) -> Any:
    def broken(path: Path) -> None:
        with zipfile.ZipFile(path, "w", kind) as archive:
            archive.writestr("mask.npy", b"\x93NUMPY" + os.urandom(500))
        data = bytearray(path.read_bytes())
        data[60:80] = bytes(20)
        path.write_bytes(data)

    return broken


def _no_array(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mask.npy", "no array")
        archive.writestr("BLOCK_SIZE.npy", "")


def _objects(path: Path) -> None:
    np.savez(path, mask=np.array([{}, {}], dtype=object), BLOCK_SIZE=8)


@pytest.mark.parametrize(
    "write",
    [
        _encrypted,
        _exotic,
        _packed(zipfile.ZIP_BZIP2),
        _packed(zipfile.ZIP_LZMA),
        _packed(zipfile.ZIP_DEFLATED),
        _no_array,
        _objects,
    ],
)
def test_broken_archives_are_refused_in_a_line(write: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    write(path)
    with pytest.raises(InputError, match=r"^mask_file"):
        load_block_mask(str(path), 16, 16)


def test_lzma_and_bzip2_members_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", mask=np.ones((2, 2), dtype=bool), BLOCK_SIZE=8)
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with (
            zipfile.ZipFile(tmp_path / "a.npz") as source,
            zipfile.ZipFile(tmp_path / "b.npz", "w", kind) as target,
        ):
            for name in source.namelist():
                target.writestr(name, source.read(name))
        assert load_block_mask(str(tmp_path / "b.npz"), 16, 16).nnz == 4


def test_pipes_and_devices_are_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (str(tmp_path / "pipe"), "/dev/zero"):
        for words in (
            ["predict", "--mask-file", place],
            ["calibrate", "--from", place],
            ["validate", "--measurements", place],
        ):
            assert main(words) == 2
            err = capsys.readouterr().err
            assert "pipe or a device" in err, words
            assert err.count("\n") == 1
