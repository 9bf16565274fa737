"""Tile picking: what is rejected and why, what is ranked and how, the resource table, and the command."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from iosim import predict
from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.catalog.resource_table import BuildReport, build_report, frame_of_stores, read_table
from iosim.commands.cli import main
from iosim.hardware.profile import list_profiles, load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.overrides import Overrides
from iosim.kernel.unit import MatrixUnit
from iosim.problem.attention import AttentionProblem
from iosim.studies.tiles import pick
from iosim.studies.tiles.one import tiles_answer
from iosim.studies.tiles.pick import (
    BLOCK_K,
    BLOCK_Q,
    STAGES,
    WARPS,
    TileCandidate,
    TileRanking,
    backward_shared_bytes,
    pick_tiles,
    rejection,
    tile_space,
)

pytestmark = pytest.mark.usefixtures("replays_once")

HEADER = (
    "kernel,cc,head_dim,block_q,block_k,warps,stages,dtype,causal,registers,spill_store_bytes,spill_load_bytes,"
    "static_smem_bytes,dynamic_smem_bytes,compiler,min_ctas\n"
)


@pytest.fixture(autouse=True)
def no_builds(monkeypatch: pytest.MonkeyPatch) -> dict[object, BuildReport]:
    """An empty resource table, so that the tests do not depend on which builds are recorded."""
    table: dict[object, BuildReport] = {}
    monkeypatch.setattr("iosim.catalog.resource_table._shipped", lambda: table)
    return table


def problem(**values: object) -> AttentionProblem:
    return AttentionProblem(
        **({"heads": 32, "seq_q": 4096, "head_dim": 128, "dtype": "fp16"} | values)
    )  # type: ignore[arg-type]


def reason(ranking: TileRanking, tile: Tile) -> str:
    return next((r.reason for r in ranking.rejected if r.tile == tile), "")


@cache
def estimated_on(gpu: str) -> TileRanking:
    """The tiles of the usual problem by estimate alone: what fits needs no replay."""
    return pick_tiles(problem(), gpu, library=False, replayed=0)


PAGED = {"flashinfer", "vllm-fa2", "vllm-triton"}
"""Kernels of paged caches on an L4."""


class TestSpace:
    def test_size_and_no_repeats(self) -> None:
        tiles = list(tile_space())
        assert (
            len(tiles)
            == len(set(tiles))
            == len(BLOCK_Q) * len(BLOCK_K) * len(WARPS) * len(STAGES)
            == 576
        )

    @pytest.mark.parametrize(
        ("tile", "unit", "expected"),
        [
            (
                Tile(32, 64, 8),
                "mma.sync",
                "block_q 32 gives 8 warps only 4 rows each: mma needs 16",
            ),
            (
                Tile(192, 64, 8),
                "mma.sync",
                "block_q 192 gives 8 warps 24 rows each: mma needs multiples of 16",
            ),
            (
                Tile(64, 64, 8),
                "wgmma",
                "block_q 64 gives 2 warpgroups only 32 rows each: wgmma needs 64",
            ),
            (Tile(64, 64, 2), "wgmma", "2 warps: wgmma needs whole groups of 4"),
            (Tile(128, 64, 4), "mma.sync", ""),
            (Tile(128, 64, 8), "wgmma", ""),
            (Tile(32, 64, 8), "fp32", ""),
        ],
    )
    def test_rows_of_a_warp(self, tile: Tile, unit: str, expected: str) -> None:
        assert rejection(tile, problem(), load_profile("h100"), MatrixUnit(unit)) == expected

    def test_backward_warps_own_key_rows(self) -> None:
        reason = rejection(
            Tile(128, 32, 8), problem(passes="bwd"), load_profile("a100"), MatrixUnit.MMA_SYNC
        )
        assert reason == "block_k 32 gives 8 warps only 4 rows each: mma needs 16"

    def test_larger_than_the_problem(self) -> None:
        a100 = load_profile("a100")
        small = problem(seq_q=100, seq_k=40)
        unit = MatrixUnit.MMA_SYNC
        assert rejection(Tile(256, 16, 4), small, a100, unit) == (
            "block_q 256 is larger than the problem: 128 covers its 100 query rows"
        )
        assert rejection(Tile(128, 64, 4), small, a100, unit) == (
            "block_k 64 is larger than the problem: 48 covers its 40 key rows"
        )
        assert rejection(Tile(128, 48, 4), small, a100, unit) == ""
        assert "128 covers its 128" in rejection(Tile(192, 48, 4), problem(seq_q=128), a100, unit)

    def test_stages_need_asynchronous_copies(self) -> None:
        t4, unit = load_profile("t4"), MatrixUnit.MMA_SYNC
        assert "2 stages need asynchronous copies (cp.async), which sm_75" in rejection(
            Tile(64, 64, 4, 2), problem(), t4, unit
        )
        assert rejection(Tile(64, 64, 4, 1), problem(), t4, unit) == ""


class TestRejections:
    def test_shared_memory(self) -> None:
        # (128 + 2 x 2 x 96) rows x 128 x 2 bytes = 131,072
        reason_given = reason(estimated_on("l4"), Tile(128, 96, 8, 2))
        assert reason_given == "needs 131,072 bytes of shared memory, sm_89 allows 101,376"

    def test_registers(self) -> None:
        # 128x96, head_dim 128, 4 warps: (128 x 96 + 128 x 128) / 128 + 56 = 280
        assert (
            reason(estimated_on("h100"), Tile(128, 96, 4, 1))
            == "needs about 280 registers a thread, at most 255"
        )

    def test_both(self) -> None:
        # (256 + 2 x 256) x 256 bytes = 196,608; (256 x 256 + 256 x 128) / 128 + 56 = 824
        assert reason(estimated_on("l4"), Tile(256, 256, 4, 1)) == (
            "needs 196,608 bytes of shared memory, sm_89 allows 101,376; "
            "needs about 824 registers a thread, at most 255"
        )

    def test_a_build_that_spills(self, no_builds: dict[object, BuildReport]) -> None:
        """It is ranked, and pays: 72 bytes of stores make a frame of 36, nine words stored and loaded at each step by
        128 threads, in 32 x 64 tiles of 64 steps."""
        key = "flash_fwd", 80, 128, 64, 64, 4, 1, "bf16", False
        no_builds[key] = BuildReport(255, 49152)
        without = pick_tiles(problem(), "a100", library=False, replayed=0)
        clean = next(c for c in without.candidates if c.tile == Tile(64, 64, 4, 1))
        no_builds[key] = BuildReport(255, 49152, frame_of_stores(72))
        ranking = pick_tiles(problem(), "a100", library=False, replayed=0)
        spilling = next(c for c in ranking.candidates if c.tile == Tile(64, 64, 4, 1))
        assert spilling.spilled_bytes == 36
        assert spilling.l2_write_bytes - clean.l2_write_bytes == 36 * 128 * 32 * 64 * 64
        assert spilling.time_s > clean.time_s

    def test_reports_come_before_recorded_builds(
        self, no_builds: dict[object, BuildReport]
    ) -> None:
        no_builds["flash_fwd", 80, 128, 64, 64, 4, 1, "bf16", False] = BuildReport(
            255, 49152, frame_of_stores(72)
        )
        wide = Tile(128, 96, 4, 1)
        ranking = pick_tiles(
            problem(),
            "a100",
            library=False,
            replayed=0,
            reports={
                Tile(64, 64, 4, 1): BuildReport(160, 49152),
                wide: BuildReport(255, 81920, 60),
            },
        )
        by_tile = {c.tile: c for c in ranking.candidates}
        assert (
            by_tile[Tile(64, 64, 4, 1)].registers,
            by_tile[Tile(64, 64, 4, 1)].spilled_bytes,
        ) == (160, 0)
        assert (
            by_tile[wide].spilled_bytes == 60
        )  # by estimate it would need 280 registers and be left out

    def test_every_tile_is_ranked_or_estimated_once(self) -> None:
        ranking = pick_tiles(problem(seq_q=200), "a10", library=False, replayed=0)
        tiles = [c.tile for c in ranking.candidates] + [r.tile for r in ranking.rejected]
        assert sorted(map(repr, tiles)) == sorted(map(repr, tile_space()))
        assert all(r.reason for r in ranking.rejected)

    def test_nothing_fits(self) -> None:
        ranking = pick_tiles(problem(head_dim=4096, heads=1), "t4", library=False, replayed=0)
        assert not ranking.candidates
        with pytest.raises(InputError, match=r"no tile fits: for the first, .* \(t4\)"):
            _ = ranking.best


class TestRanking:
    def test_fastest_first(self) -> None:
        ranking = pick_tiles(problem(mask="causal"), "a100")
        times = [c.time_s for c in ranking.candidates]
        assert times == sorted(times)
        assert ranking.best is next(c for c in ranking.ties if not c.spilled_bytes)
        assert [c.time_s for c in ranking.library] == sorted(c.time_s for c in ranking.library)

    def test_tiles_within_the_error_tie_and_a_spilling_one_does_not_win(self) -> None:
        ranking = pick_tiles(problem(), "a100", library=False, replayed=0)
        first = ranking.candidates[0]

        def timed(seconds: float, spilled: int = 0) -> TileCandidate:
            return replace(first, time_s=seconds, spilled_bytes=spilled)

        # 1.04 is within 5 % of 1.0, 1.06 is not; the winner by 2 % spills, so the next is named.
        near, far = timed(1.04e-3), timed(1.06e-3)
        tied = replace(ranking, candidates=(timed(1e-3, 8), timed(1.02e-3), near, far))
        assert tied.ties == tied.candidates[:3]
        assert tied.best is tied.candidates[1]
        assert "ties with 2 others of 4 tiles that fit: 1.02 ms" in tiles_answer([tied])
        # Beyond the error a tile that spills is the fastest all the same.
        alone = replace(ranking, candidates=(timed(1e-3, 8), far))
        assert alone.best is alone.candidates[0]
        assert "is fastest of 2 tiles that fit: 1 ms" in tiles_answer([alone])

    @pytest.mark.parametrize("passes", ["fwd", "bwd"])
    @pytest.mark.parametrize(("kernel", "gpu"), [("fa2", "a100"), ("fa3", "h100")])
    def test_tiles_of_a_kernel_hold_its_own_as_predict_has_it(
        self, kernel: str, gpu: str, passes: str
    ) -> None:
        call = problem(passes=passes)
        ranking = pick_tiles(call, gpu, kernel=kernel)
        (own_tile,) = ranking.library
        alone = predict(call, kernel, gpu)
        assert own_tile.time_s == alone.time_s
        assert own_tile in ranking.candidates
        assert {c.kernel for c in ranking.candidates} == {alone.kernel.name}
        # Another tile is the kernel with that tile by hand.
        other = next(
            c for c in ranking.candidates if c.tile != own_tile.tile and c.method == "replay"
        )
        over = Overrides(
            tile=(other.tile.block_q, other.tile.block_k),
            warps=other.tile.warps,
            stages=other.tile.stages,
        )
        assert predict(call, kernel, gpu, overrides=over).time_s == other.time_s

    def test_a_candidate_is_what_predict_says(self) -> None:
        ranking = pick_tiles(problem(mask="causal", kv_heads=8), "a100", library=False)
        for c in (ranking.candidates[0], ranking.candidates[-1]):
            p = predict(
                problem(mask="causal", kv_heads=8),
                Kernel("flash", "flash", c.tile),
                "a100",
                method=c.method,
            )
            assert (c.time_s, c.bound_by) == (p.time.total_s, p.time.bound_by)
            assert (c.l2_read_bytes, c.l2_write_bytes) == (
                p.total("l2", "read"),
                p.total("l2", "write"),
            )
            assert (c.hbm_read_bytes, c.hbm_write_bytes) == (
                p.total("hbm", "read"),
                p.total("hbm", "write"),
            )

    def test_a_compiled_tile_takes_the_reports_resources(
        self, no_builds: dict[object, BuildReport]
    ) -> None:
        no_builds["flash_fwd", 80, 128, 128, 64, 8, 2, "fp16", True] = BuildReport(128, 98432)
        ranking = pick_tiles(problem(mask="causal"), "a100", library=False, replayed=0)
        c = next(c for c in ranking.candidates if c.tile == Tile(128, 64, 8, 2))
        # one CTA: 98,432 + 1,024 bytes of 167,936; registers 128 x 256 threads would allow two
        assert (c.registers, c.registers_source, c.shared_memory_bytes, c.ctas_per_sm) == (
            128,
            "compiled",
            98432,
            1,
        )
        other = next(c for c in ranking.candidates if c.tile == Tile(128, 64, 8, 1))
        assert (other.registers, other.registers_source) == (
            (128 * 64 + 128 * 128) // 256 + 56,
            "estimated",
        )

    def test_waves_and_occupancy(self) -> None:
        c = next(c for c in estimated_on("h100").candidates if c.tile == Tile(64, 64, 4, 1))
        # (64 x 64 + 64 x 128) / 128 + 56 = 152 registers: 3 CTAs of 128 threads on each of 132 SMs; 12 of 64 warps
        assert (c.registers, c.ctas_per_sm, c.limited_by) == (152, 3, ("registers",))
        assert c.waves == 2048 / 396
        assert c.occupancy == 12 / 64

    def test_hopper_prefers_wgmma(self) -> None:
        mma = estimated_on("h100").best
        wgmma = pick_tiles(problem(), "h100", matrix_unit="wgmma", library=False, replayed=0).best
        assert wgmma.time_s < 0.9 * mma.time_s
        assert wgmma.tile.block_q % 64 == 0

    def test_a_type_that_tensor_cores_lack_is_computed_in_fp32(self) -> None:
        """bf16 on a T4, in no less than its two products of 4,096 x 4,096 x 128 in 32 heads take at 8.14 TFLOP/s."""
        slow = pick_tiles(problem(dtype="bf16"), "t4", library=False, replayed=0).best
        assert slow.time_s > 4 * 32 * 4096 * 4096 * 128 / 8.14e12 > estimated_on("t4").best.time_s
        assert slow.bound_by == "tensor"

    def test_a_kernel_of_two_names_is_there_once(self) -> None:
        """Before Hopper cuDNN's name stands for the kernel of the older GPUs, which has a name of its own, too."""
        names = [c.kernel for c in pick_tiles(problem(), "a100", replayed=0).library]
        assert "cudnn-sm80" in names
        assert len(names) == len(set(names))

    @pytest.mark.slow
    def test_libraries_that_can_run_there(self) -> None:
        names = {
            gpu: {c.kernel for c in pick_tiles(problem(), gpu).library}
            for gpu in ("t4", "l4", "a100", "h100")
        }
        assert names["t4"] == {
            "cutlass",
            "fa-turing",
            "flex",
            "triton",
            "triton-streaming",
            "vllm-triton",
        }
        of_ampere = {
            "fa2",
            "fa3-sm80",
            "fa4-sm80",
            "cudnn-sm80",
            "cutlass",
            "flash-attn",
            "flex",
            "ibm-triton",
            "triton",
            *PAGED,
        }
        assert names["l4"] == of_ampere
        assert names["a100"] == {*of_ampere, "cudnn-oss-sm80", "triton-streaming"}
        assert names["h100"] - names["a100"] >= {"fa3", "cudnn"}

    def test_library_tiles_are_the_librarys_own(self) -> None:
        library_tiles = {c.kernel: c.tile for c in pick_tiles(problem(mask="causal"), "l4").library}
        assert library_tiles["fa2"] == Tile(
            64, 64, 4, 1
        )  # FlashAttention-2 on sm_89, causal, head_dim 128

    @pytest.mark.slow
    def test_backward(self) -> None:
        # Q 128 x 64 twice, dO, K, V once, P and dS 128 x 128, two bytes each: FlashAttention-2's 147,456
        attention = problem(head_dim=64, passes="bwd")
        assert backward_shared_bytes(attention, Tile(128, 128, 8, 2)) == 147456
        ranking = pick_tiles(attention, "a100")
        assert ranking.best.shared_memory_bytes == backward_shared_bytes(
            attention, ranking.best.tile
        )
        assert "needs 147,456 bytes of shared memory, sm_86 allows 101,376" in reason(
            pick_tiles(attention, "a10", library=False, replayed=0), Tile(128, 128, 8, 2)
        )
        fa2 = next(c for c in ranking.library if c.kernel == "fa2")
        assert (fa2.tile.block_q, fa2.tile.block_k, fa2.shared_memory_bytes) == (128, 128, 147456)

    @settings(max_examples=examples(12), deadline=None)
    @given(
        st.sampled_from(sorted(list_profiles())),
        st.integers(1, 3000),
        st.sampled_from([40, 64, 80, 128, 256]),
        st.sampled_from(["none", "causal"]),
        st.sampled_from(["fwd", "bwd"]),
    )
    def test_any_gpu_and_problem(
        self, gpu: str, seq: int, head_dim: int, mask: str, passes: str
    ) -> None:
        attention = problem(seq_q=seq, head_dim=head_dim, mask=mask, passes=passes)
        ranking = pick_tiles(attention, gpu, library=False, replayed=0)
        profile = load_profile(gpu)
        assert len(ranking.candidates) + len(ranking.rejected) == 576
        for c in ranking.candidates:
            assert c.time_s > 0
            assert c.ctas_per_sm >= 1
            assert c.registers <= (512 if profile.is_amd else 255)
            assert (c.shared_memory_bytes or 0) <= profile.need_int(
                "shared_memory_per_block_optin_bytes"
            )
            assert c.hbm_read_bytes <= c.l2_read_bytes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pick_tiles(problem(passes="fwd+bwd")), r"passes fwd\+bwd: .*accepted: fwd, bwd"),
        (
            lambda: pick_tiles(problem(), matrix_unit="wmma"),
            r"matrix_unit 'wmma' is not known; accepted: mma\.sync",
        ),
        (
            lambda: pick_tiles(problem(), "a100", matrix_unit="wgmma"),
            r"wgmma: needs cc 9\.0; a100.* has cc 8\.0",
        ),
        (
            lambda: pick_tiles(problem(), "b200", matrix_unit="wgmma"),
            r"wgmma: needs cc 9\.0; b200.* has cc 10\.0",
        ),
        (
            lambda: pick_tiles(problem(dtype="fp8"), "a100"),
            r"dtype fp8: .* from cc 8\.9; a100.* has cc 8\.0; accepted there: fp32, tf32, fp16, bf16$",
        ),
        (
            lambda: pick_tiles(problem(), kernel="fa2", matrix_unit="wgmma"),
            r"matrix_unit wgmma contradicts kernel fa2",
        ),
        (lambda: pick_tiles(problem(), "a1000000"), "GPU 'a1000000' is not known"),
    ],
)
def test_bad_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_tensor_cores_of_cc_8_9_are_the_first_to_take_fp8() -> None:
    assert pick_tiles(problem(dtype="fp8"), "l4", library=False, replayed=0).candidates


class TestResourceTable:
    def test_rows_and_comments(self, tmp_path: Path) -> None:
        path = tmp_path / "resources.csv"
        path.write_text(
            f"# made by a script\n{HEADER}flash_fwd,8.9,64,128,64,4,2,bf16,1,168,0,4,128,49152,13.0,1\n"
        )
        table = read_table(path)
        report = table["flash_fwd", 89, 64, 128, 64, 4, 2, "bf16", True]
        assert (report.registers, report.shared_memory_bytes, report.frame_bytes > 0) == (
            168,
            49280,
            True,
        )
        assert len(table) == 1

    @pytest.mark.parametrize(
        ("text", "wrong"),
        [
            ("kernel,cc\nflash_fwd,8.9\n", ": head_dim: missing"),
            (
                HEADER + "flash_fwd,8.9,64,x,64,4,2,bf16,1,1,0,0,0,0,13.0,1\n",
                ", line 2: block_q: 'x' is not a whole number",
            ),
        ],
    )
    def test_a_broken_table_is_one_line(self, tmp_path: Path, text: str, wrong: str) -> None:
        path = tmp_path / "resources.csv"
        path.write_text(text)
        with pytest.raises(InputError, match=re.escape(f"resource table '{path}'{wrong}")):
            read_table(path)

    def test_fp16_takes_the_bf16_build_and_windows_none(
        self, no_builds: dict[object, BuildReport]
    ) -> None:
        no_builds["flash_fwd", 80, 128, 64, 64, 4, 1, "bf16", False] = BuildReport(150, 49280)
        a100 = load_profile("a100")
        tile = Tile(64, 64, 4, 1)
        report = build_report(problem(), tile, a100)
        assert report is not None
        assert report.registers == 150
        assert build_report(problem(mask="causal"), tile, a100) is None
        assert build_report(problem(mask="window", window=64), tile, a100) is None
        assert build_report(problem(head_dim_v=64), tile, a100) is None
        assert build_report(problem(), tile, load_profile("h100")) is None


class TestCommand:
    def run(self, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
        code = main(["tiles", *args])
        out = capsys.readouterr()
        return code, out.out, out.err

    def test_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, _ = self.run(
            capsys, "--gpu", "l4", "--seq-len", "512,1k", "--top", "2", "--format", "json"
        )
        d = json.loads(out)
        assert (code, d["schema"]) == (0, 1)
        assert [(t["profile"], t["seq_q"]) for t in d["tiles"]] == [("l4", 512)] * 2 + [
            ("l4", 1024)
        ] * 2
        assert {t["seq_k"] for t in d["rejected"]} == {512, 1024}
        assert all(t["reason"] for t in d["rejected"])
        assert {t["kernel"] for t in d["library"]} == {
            "fa2",
            "fa3-sm80",
            "fa4-sm80",
            "cudnn-sm80",
            "cutlass",
            "flash-attn",
            "flex",
            "ibm-triton",
            "triton",
            *PAGED,
        }
        assert isinstance(d["tiles"][0]["l2_read_bytes"], int)

    def test_csv(self, capsys: pytest.CaptureFixture[str]) -> None:
        _, out, _ = self.run(capsys, "--gpu", "t4", "--format", "csv", "--top", "3")
        rows = list(csv.DictReader(io.StringIO(out)))
        assert [r["kind"] for r in rows] == ["tile"] * 3 + ["library"] * 6
        _, out, _ = self.run(capsys, "--gpu", "t4", "--format", "csv", "--rejected")
        assert all(r["reason"] for r in csv.DictReader(io.StringIO(out)))

    @pytest.mark.parametrize(("style", "mark"), [("table", "rank"), ("md", "| rank | tile |")])
    def test_text(self, capsys: pytest.CaptureFixture[str], style: str, mark: str) -> None:
        _, out, _ = self.run(capsys, "--gpu", "l4", "--format", style, "--top", "1", "--rejected")
        assert mark in out
        assert "Library kernels" in out
        assert " bytes of shared memory, sm_89 allows 101,376" in out

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (
                ["--kernel", "naive"],
                "--kernel naive: it has no tiles to choose; accepted: kernels of algorithm flash",
            ),
            (
                ["--kernel", "fa2", "--compile", "2"],
                "--compile 2 contradicts --kernel fa2; accepted: one of them",
            ),
            (["--top", "0"], "--top 0 is out of range"),
            (["--pass", "fwd+bwd"], "one pass at a time"),
            (["--gpu", "l4", "--matrix-unit", "wgmma"], "needs cc 9.0"),
        ],
    )
    def test_bad_input(
        self, capsys: pytest.CaptureFixture[str], args: list[str], message: str
    ) -> None:
        code, out, err = self.run(capsys, *args)
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(("slower", "first"), [(1, 3), (3, 3), (3, 1), (3, 8)])
def test_the_first_are_replayed_whatever_replays_make_of_them(
    slower: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight tiles of 1 to 8 us by the quick rule, which a replay finds to take `slower` times as long: those that come to
    the front then are replayed in their turn."""

    def planned(time_s: float, replayed: bool) -> Any:
        sizes = {"l2_read_bytes": 0, "l2_write_bytes": 0, "shared_memory_bytes": 0}
        candidate = SimpleNamespace(time_s=time_s, **sizes)
        return SimpleNamespace(candidate=candidate, replayed=replayed)

    def replays(tiles: list[Any], progress: object) -> list[Any]:
        return [planned(slower * tile.candidate.time_s, True) for tile in tiles]

    monkeypatch.setattr(pick, "replayed_tiles", replays)
    tiles = [planned(1e-6 * n, False) for n in range(1, 9)]
    ranked, library = pick._replayed(tiles, [planned(5e-6, False)], first, None)  # type: ignore[arg-type]
    assert all(tile.replayed for tile in (*ranked[:first], *library))
    assert [tile.candidate.time_s for tile in ranked] == sorted(t.candidate.time_s for t in ranked)
    if slower == 1:  # nothing came to the front
        assert sum(tile.replayed for tile in ranked) == first


@pytest.mark.parametrize("replayed", [0, 1, 2])
def test_the_best_tile_is_replayed_where_any_is(replayed: int) -> None:
    """The rest stay as the quick rule has them, but for those that replayed ones fall behind."""
    ranking = pick_tiles(
        problem(heads=1, seq_q=256, head_dim=64), "a100", library=False, replayed=replayed
    )
    methods = [candidate.method for candidate in ranking.candidates]
    assert (methods[0] == "replay") is (replayed > 0)
    assert methods.count("replay") >= replayed
