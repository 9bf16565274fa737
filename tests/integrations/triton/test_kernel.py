"""Triton: shared memory and ranking against the recorded tiles, the autotuner's hooks, the printed list, the article's
block-sparse kernel."""

from __future__ import annotations

import ast
import csv
import json
import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from counter import count
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scripts import load_script, measurements

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.catalog.libraries.triton import shared_bytes, unit_of
from iosim.catalog.resource_table import BuildReport
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.integrations.triton.kernel import (
    Config,
    TimedConfig,
    configured,
    misfit,
    rank,
    space,
    try_config,
    tutorial_configs,
)
from iosim.integrations.triton.model import TritonModel, tutorial_problem
from iosim.integrations.triton.streaming_mask import streaming_mask
from iosim.kernel.schedule import Order
from iosim.kernel.unit import MatrixUnit
from iosim.problem.attention import AttentionProblem

H200 = load_profile("h200")
RECORDED = AttentionProblem(heads=32, seq_q=4096, head_dim=64, dtype="bf16")


@dataclass
class StandIn:
    """What triton.autotune knows of a triton.Config."""

    kwargs: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    maxnreg: int | None = None
    log: list[str] = field(default_factory=list)

    def __hash__(self) -> int:
        return id(self)

    def all_kwargs(self) -> dict[str, Any]:
        own = {
            "num_warps": self.num_warps,
            "num_ctas": self.num_ctas,
            "num_stages": self.num_stages,
        }
        return self.kwargs | own


def autotuner_prunes(
    configs: list[StandIn], nargs: dict[str, Any], kwargs: dict[str, Any], by: dict[str, Any]
) -> list[StandIn]:
    """The order of calls in Triton's Autotuner.prune_configs."""
    kept = by["early_config_prune"](configs, nargs, **kwargs)
    top_k = by["top_k"]
    if isinstance(top_k, float):
        top_k = max(1, int(len(kept) * top_k))
    if len(kept) <= top_k:
        return kept
    times = {c: by["perf_model"](**nargs, **kwargs, **c.all_kwargs()) for c in kept}
    return sorted(times, key=lambda c: times[c])[:top_k]


def recorded() -> list[tuple[Config, dict[str, str]]]:
    path = measurements("triton_tiles_d64_time.csv")
    with path.open(newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["BM"]]
    return [(Config(*(int(float(r[n])) for n in ("BM", "BN", "warps", "stages"))), r) for r in rows]


ARGUMENTS = {"Z": 1, "H": 32, "N_CTX": 4096}
CONSTANTS = {"HEAD_DIM": 64, "STAGE": 1}


class TestRecordedTiles:
    def test_shared_memory_is_what_triton_allocated(self) -> None:
        for config, r in recorded():
            assert shared_bytes(config.tile, RECORDED, unit_of(config.tile, RECORDED, H200)) == int(
                float(r["smem"])
            ), config

    def test_arithmetic_of_shared_memory(self) -> None:
        # wgmma: Q 128 x 64 x 2 bytes, K and V 64 x 64 x 2 each, three times
        assert (
            shared_bytes(Config(128, 64, 8, 3).tile, RECORDED, MatrixUnit.WGMMA)
            == 16384 + 3 * 2 * 8192
        )
        assert (
            shared_bytes(Config(128, 64, 8, 1).tile, RECORDED, MatrixUnit.WGMMA) == 16384 + 8192
        )  # K and V take turns
        # mma.sync: P 128 x 64 x 2 beside Q, and K and V twice
        assert (
            shared_bytes(Config(128, 64, 8, 3).tile, RECORDED, MatrixUnit.MMA_SYNC)
            == 16384 + 16384 + 2 * 2 * 8192
        )

    def test_ranking(self) -> None:
        """No recorded value is an input: registers and shared memory are iosim's own."""
        results = ((try_config(c, RECORDED, H200), r) for c, r in recorded())
        timed = [(t.time_s * 1e3, float(r["ms"])) for t, r in results if isinstance(t, TimedConfig)]
        predicted, measured = (np.array(x) for x in zip(*timed, strict=True))
        ranks = [np.argsort(np.argsort(x)) for x in (predicted, measured)]
        assert len(timed) == 38
        assert np.corrcoef(*ranks)[0, 1] > 0.92
        assert measured[int(predicted.argmin())] <= 1.03 * measured.min()
        four = measured[np.argsort(predicted, kind="stable")[:4]]
        assert (
            four.min() == measured.min()
        )  # among four that would be measured stands the best of all

    def test_with_the_compilers_word_what_spills_is_timed_and_not_first(self) -> None:
        """Words of a thread's frame and registers as the driver said them; no time is an input."""
        reports, measured = {}, {}
        for c, r in recorded():
            frame = 4 * int(float(r["spills"]))
            reports[c] = BuildReport(int(float(r["regs"])), int(float(r["smem"])), frame)
            measured[c] = float(r["ms"])
        ranked = rank(RECORDED, H200, measured, reports=reports)
        assert len(ranked) == len(measured) == 42
        assert measured[ranked[0].config] <= min(measured.values()) / 0.95
        off = [t.time_s * 1e3 / measured[t.config] - 1 for t in ranked if t.spilled_bytes]
        assert len(off) == 7
        assert np.mean(np.abs(off)) < 0.08

    def test_what_is_left_out_spills(self) -> None:
        left_out = [r for c, r in recorded() if misfit(c, RECORDED, H200)]
        assert len(left_out) == 4
        assert all(float(r["spills"]) > 50 for r in left_out)


class TestConfigurations:
    @pytest.mark.parametrize(("block_m", "warps", "gpu", "unit"), [
        (128, 4, "h100", MatrixUnit.WGMMA),
        (32, 4, "h100", MatrixUnit.MMA_SYNC),  # a warpgroup needs 64 rows
        (128, 4, "a100", MatrixUnit.MMA_SYNC),
    ])  # fmt: skip
    def test_unit(self, block_m: int, warps: int, gpu: str, unit: MatrixUnit) -> None:
        assert unit_of(Config(block_m, 64, warps).tile, RECORDED, load_profile(gpu)) is unit

    def test_single_precision_runs_on_the_ordinary_units(self) -> None:
        assert unit_of(Config(64, 32).tile, RECORDED.with_(dtype="fp32"), H200) is MatrixUnit.FP32

    @pytest.mark.parametrize(("config", "gpu", "words"), [
        (Config(128, 64, 4, 2), "t4", "asynchronous copies"),
        (Config(8, 64), "h100", "tl.dot needs 16"),
        (Config(256, 128, 4, 1), "h100", "registers a thread, at most 255"),
        (Config(128, 128, 8, 4), "l4", "shared memory"),
    ])  # fmt: skip
    def test_misfits(self, config: Config, gpu: str, words: str) -> None:
        assert words in misfit(config, RECORDED, load_profile(gpu))

    def test_tiles_of_twice_the_problem_are_left_out(self) -> None:
        short = RECORDED.with_(seq_q=64, seq_k=64)
        assert "twice the problem's 64 rows" in misfit(Config(128, 64), short, H200)
        assert misfit(Config(64, 64), short, H200) == ""

    @given(
        st.sampled_from(list(space())),
        st.sampled_from([64, 128, 256]),
        st.sampled_from(["a100", "h100", "t4"]),
    )
    @settings(max_examples=examples(40), deadline=None)
    def test_what_fits_has_a_time_and_a_cta(self, config: Config, head_dim: int, gpu: str) -> None:
        asked, profile = AttentionProblem(heads=8, seq_q=2048, head_dim=head_dim), load_profile(gpu)
        if misfit(config, asked, profile):
            assert try_config(config, asked, profile) == misfit(config, asked, profile)
            return
        found = try_config(config, asked, profile)
        assert isinstance(found, TimedConfig)
        assert found.ctas_per_sm >= 1
        assert 0 < found.time_s < 1
        kernel = configured(config, asked, profile)
        assert kernel.tile == config.tile

    def test_the_tutorials_list(self) -> None:
        """2 x 2 tiles x 3 stages x 2 warps; no tile is large enough for eight warps, so half of them go."""
        found = tutorial_configs()
        assert len(found) == 12
        assert {c.num_warps for c in found} == {4}
        assert {(c.block_m, c.block_n) for c in found} == {(64, 32), (64, 64), (128, 32), (128, 64)}
        assert {c.num_stages for c in found} == {3, 4, 7}

    def test_rank_is_sorted_and_refuses_a_backward(self) -> None:
        found = rank(RECORDED, "a100")
        assert [t.time_s for t in found] == sorted(t.time_s for t in found)
        with pytest.raises(InputError, match=r"^passes bwd"):
            rank(RECORDED.with_(passes="bwd"), "a100")

    def test_rank_says_why_nothing_fits(self) -> None:
        with pytest.raises(InputError, match=r"no Triton configuration of 1 fits on t4: 2 stages"):
            rank(RECORDED.with_(dtype="fp16"), "t4", [Config(64, 32, 4, 2)])

    @pytest.mark.parametrize("values", [(0, 64), (64, 96), (64, 64, 3), (64, 64, 4, 0), (64, True)])
    def test_nonsense(self, values: tuple[int, ...]) -> None:
        with pytest.raises(InputError):
            Config(*values)


CONFIGS = [
    StandIn({"BLOCK_M": m, "BLOCK_N": n}, w, s) for m in (64, 128, 256) for n in (32, 64, 128) for w in (4, 8)
    for s in (1, 3)
]  # fmt: skip


class TestModel:
    def test_the_autotuner_gets_the_best_configurations(self) -> None:
        q = SimpleNamespace(dtype="torch.bfloat16")
        by = TritonModel("h200").prune_configs_by(top_k=4)
        kept = autotuner_prunes(CONFIGS, {"Q": q, **ARGUMENTS}, CONSTANTS, by)
        ranked = rank(
            RECORDED, H200, [Config(*c.kwargs.values(), c.num_warps, c.num_stages) for c in CONFIGS]
        )
        times = {t.config: t.time_s for t in ranked}
        got = [times[Config(*c.kwargs.values(), c.num_warps, c.num_stages)] for c in kept]
        assert got == [t.time_s for t in ranked[:4]]

    def test_milliseconds(self) -> None:
        found = TritonModel("h200").perf_model(**ARGUMENTS, **CONSTANTS, BLOCK_M=64, BLOCK_N=64, num_warps=4,
                                               num_stages=3, num_ctas=1)  # fmt: skip
        same = try_config(Config(64, 64), RECORDED.with_(dtype="fp16", output="fp16"), H200)
        assert found == same.time_s * 1e3
        assert 0.2 < found < 0.6

    def test_what_does_not_fit_takes_forever_and_is_pruned(self) -> None:
        model = TritonModel("t4", problem=RECORDED.with_(dtype="fp16", output="fp16"))
        assert model.perf_model(BLOCK_M=128, BLOCK_N=128, num_warps=4, num_stages=3) == math.inf
        kept = model.early_config_prune(CONFIGS, {})
        assert kept
        assert all(c.num_stages == 1 for c in kept)

    def test_at_least_one_configuration_stays(self) -> None:
        model = TritonModel("t4", problem=RECORDED.with_(dtype="fp16", output="fp16"))
        staged = [c for c in CONFIGS if c.num_stages == 3]
        kept = model.early_config_prune(staged, {})
        assert len(kept) == 1
        assert kept[0].kwargs == {"BLOCK_M": 64, "BLOCK_N": 32}
        with pytest.raises(InputError, match="at least one"):
            model.early_config_prune([], {})

    def test_other_names_and_the_block_sparse_kernel(self) -> None:
        asked = RECORDED.with_(mask="blocks", mask_blocks=streaming_mask(4096, 128, 3))
        model = TritonModel("h100", problem=lambda args: asked, names=("TILE_Q_SIZE", "TILE_K_SIZE"),
                            kernel="triton-streaming")  # fmt: skip
        sparse = model.perf_model(
            TILE_Q_SIZE=128, TILE_K_SIZE=128, PIPELINING=3, num_warps=4, num_stages=3
        )
        full = TritonModel("h100", problem=RECORDED).perf_model(
            BLOCK_M=128, BLOCK_N=128, num_warps=4, num_stages=3
        )
        assert sparse < full / 4  # 4 of 32 chunks

    @pytest.mark.parametrize(("arguments", "words"), [
        ({}, "lack Z, H, N_CTX, HEAD_DIM"),
        ({"Z": 1, "H": 1, "N_CTX": 128}, "lack HEAD_DIM"),
        (ARGUMENTS | CONSTANTS | {"Q": SimpleNamespace(dtype="torch.int64")}, "dtype 'int64' of Q is not known"),
        (ARGUMENTS | CONSTANTS | {"N_CTX": 0}, "seq_q 0"),
    ])  # fmt: skip
    def test_bad_arguments(self, arguments: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError, match=words):
            tutorial_problem(arguments)

    def test_bad_names_and_top_k(self) -> None:
        with pytest.raises(InputError, match="lack BLOCK_M, BLOCK_N"):
            TritonModel("h100").perf_model(**ARGUMENTS, **CONSTANTS, TILE=64)
        for top_k in (0, 1.5, 0.0, True, "4"):
            with pytest.raises(InputError, match="top_k"):
                TritonModel("h100").prune_configs_by(top_k)  # type: ignore[arg-type]

    def test_masks_of_the_tutorial(self) -> None:
        assert tutorial_problem(ARGUMENTS | {"HEAD_DIM": 64, "STAGE": 3}).mask == "causal"
        assert tutorial_problem(ARGUMENTS | {"HEAD_DIM": 64, "CAUSAL": False}).mask == "none"

    @pytest.mark.parametrize(
        "name", ["CAUSAL", "IS_CAUSAL", "is_causal", "causal", "USE_CAUSAL", "CAUSAL_MASK"]
    )
    def test_flags_of_a_causal_mask(self, name: str) -> None:
        for value, mask in (
            (True, "causal"),
            (1, "causal"),
            (False, "none"),
            (0, "none"),
            (None, "none"),
        ):
            assert tutorial_problem(ARGUMENTS | {"HEAD_DIM": 64, name: value}).mask == mask
        both = {"HEAD_DIM": 64, "STAGE": 1, name: True}
        assert TritonModel("h100").problem(ARGUMENTS | both).mask == "causal"

    @pytest.mark.parametrize("flag", [
        {"WINDOW_SIZE": 128}, {"sliding_window": 64}, {"HAS_MASK": True}, {"mask_ptr": SimpleNamespace()},
        {"BLOCK_MASK": 1, "CAUSAL": True}, {"IS_LOCAL": True}, {"causal_offset": 8}, {"mask_type": "prefix"},
    ])  # fmt: skip
    def test_a_mask_that_is_not_known_is_named(self, flag: dict[str, Any]) -> None:
        with pytest.raises(
            InputError, match=rf"argument {next(iter(flag))} is about a mask, .*problem of your own"
        ):
            TritonModel("h100").problem(ARGUMENTS | {"HEAD_DIM": 64} | flag)

    @pytest.mark.parametrize("flag", [
        {"WINDOW": -1}, {"WINDOW": 0}, {"mask": None}, {"USE_MASK": False}, {"mask": "none"}, {"stride_mask_b": 64},
    ])  # fmt: skip
    def test_no_mask_asked_for(self, flag: dict[str, Any]) -> None:
        assert tutorial_problem(ARGUMENTS | {"HEAD_DIM": 64} | flag).mask == "none"
        descriptor = SimpleNamespace(base=SimpleNamespace(dtype="torch.float8_e5m2"))
        assert tutorial_problem(ARGUMENTS | CONSTANTS | {"desc_q": descriptor}).dtype == "fp8"


class TestCommand:
    ASKED = (
        "tiles",
        "--triton",
        "--heads",
        "32",
        "--seq-len",
        "4k",
        "--head-dim",
        "64",
        "--dtype",
        "bf16",
    )

    def run(self, capsys: pytest.CaptureFixture[str], *more: str) -> str:
        assert main([*self.ASKED, *more]) == 0
        return capsys.readouterr().out

    def test_the_list_is_python(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = self.run(capsys, "--gpu", "h200", "--top", "3")
        made: list[tuple[dict[str, int], int, int]] = []

        def record(kwargs: dict[str, int], num_warps: int, num_stages: int) -> None:
            made.append((kwargs, num_warps, num_stages))

        names: dict[str, Any] = {"triton": SimpleNamespace(Config=record)}
        exec(
            compile(text.replace("import triton\n", ""), "configs", "exec"), names
        )  # what a user would paste
        best = rank(RECORDED, H200)[:3]
        assert made == [({"BLOCK_M": t.config.block_m, "BLOCK_N": t.config.block_n}, t.config.num_warps,
                         t.config.num_stages) for t in best]  # fmt: skip
        assert len(names["configs"]) == 3

    def test_the_tutorials_list_is_ranked_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        asked = [
            part
            for word in self.ASKED
            for part in ((word, "tutorial") if word == "--triton" else (word,))
        ]
        assert main([*asked, "--gpu", "h200", "--format", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)["triton"]
        assert {r["num_stages"] for r in rows} <= {3, 4, 7}
        assert {r["num_warps"] for r in rows} == {4}

    @pytest.mark.slow
    def test_several_problems_have_several_lists(self, capsys: pytest.CaptureFixture[str]) -> None:
        tree = ast.parse(
            self.run(capsys, "--gpu", "h100", "--gpu", "a100", "--seq-len", "1k")
        )  # beside the 4k asked
        assigned = [n.targets[0].id for n in tree.body if isinstance(n, ast.Assign)]  # type: ignore[attr-defined]
        assert assigned == ["configs_1", "configs_2", "configs_3", "configs_4"]

    def test_json_and_csv(self, capsys: pytest.CaptureFixture[str]) -> None:
        rows = json.loads(self.run(capsys, "--gpu", "h200", "--format", "json"))["triton"]
        assert [r["time_ms"] for r in rows] == sorted(r["time_ms"] for r in rows)
        assert len(rows) == 10
        lines = self.run(capsys, "--gpu", "h200", "--format", "csv", "--top", "2").splitlines()
        assert lines[0].startswith("profile,seq_q,seq_k,BLOCK_M,BLOCK_N,num_warps,num_stages")
        assert len(lines) == 3

    @pytest.mark.parametrize("more", [
        ("--pass", "bwd"), ("--rejected",), ("--format", "md"), ("--matrix-unit", "wgmma"), ("--top", "0"),
        ("--triton", "best"), ("--triton", ""),
    ])  # fmt: skip
    def test_bad_input(self, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]) -> None:
        refused(capsys, [*self.ASKED, *more])


class TestStreaming:
    def test_chunks_keep_their_own_and_those_before(self) -> None:
        # 5 chunks with two before: 1 + 2 + 3 + 3 + 3 blocks
        mask = streaming_mask(600, 128, 2)
        assert mask.nnz == 12
        i, j = np.meshgrid(np.arange(600), np.arange(600), indexing="ij")
        chunk = i // 128 - j // 128
        assert np.array_equal(mask.keeps(i, j), (chunk >= 0) & (chunk <= 2))

    @pytest.mark.parametrize(
        "values", [(0, 1, 0), (8, 0, 0), (8, 4, -1), (8, True, 0), (8, 4, 1.5)]
    )
    def test_bad_values(self, values: tuple[Any, Any, Any]) -> None:
        with pytest.raises(InputError, match=r"out of range|not a whole number"):
            streaming_mask(*values)

    def test_bytes_follow_the_kept_chunks(self) -> None:
        asked = RECORDED.with_(
            heads=2, kv_heads=2, mask="blocks", mask_blocks=streaming_mask(4096, 128, 3)
        )
        kernel = resolve("triton-streaming", asked, load_profile("h100"))
        assert str(kernel.tile) == "128x128"
        found = count(plan(asked, kernel))
        # 32 chunks: 1 + 2 + 3 + 29 x 4 blocks of 128 x 64 x 2 bytes, two heads
        assert found.total("l2", "read", tensor="K") == (1 + 2 + 3 + 29 * 4) * 128 * 64 * 2 * 2

    @pytest.mark.parametrize(("gpu", "dtype", "head_dim", "tile", "warps"), [
        ("h100", "bf16", 64, "128x128", 4),
        ("h100", "bf16", 128, "128x64", 8),
        ("h100", "fp16", 128, "128x128", 8),
        ("a100", "bf16", 128, "128x64", 8),
        ("a100", "fp32", 256, "64x16", 4),
        ("t4", "fp16", 128, "64x32", 4),
    ])  # fmt: skip
    def test_tiles_and_order(
        self, gpu: str, dtype: str, head_dim: int, tile: str, warps: int
    ) -> None:
        kernel = resolve(
            "triton-article", RECORDED.with_(dtype=dtype, head_dim=head_dim), load_profile(gpu)
        )
        assert (str(kernel.tile), kernel.tile.warps) == (tile, warps)
        assert kernel.schedule.order is Order.HEAD  # the query block is slowest

    def test_the_tutorial_has_the_query_block_fastest(self) -> None:
        assert resolve("triton", RECORDED, H200).schedule.order is Order.QUERY


def test_timed_configs_are_plain() -> None:
    found = try_config(Config(64, 64), RECORDED, H200)
    assert isinstance(found, TimedConfig)
    assert found.shared_memory_bytes == 57344


class TestWaits:
    """What warps wait for in a step, as Triton compiles loops of copies and products."""

    WIDE = AttentionProblem(heads=32, kv_heads=8, seq_q=4096, head_dim=128, dtype="bf16")

    def time(self, config: Config, gpu: str = "h200", name: str = "triton") -> float:
        found = try_config(config, self.WIDE, load_profile(gpu), name)
        assert isinstance(found, TimedConfig)
        return found.time_s

    @pytest.mark.parametrize(("block_m", "block_n", "warps", "measured"), [
        (128, 128, 8, 0.6119 / 0.5467), (256, 64, 8, 0.6154 / 0.5304), (128, 64, 8, 0.7006 / 0.5755),
        (64, 128, 4, 0.8350 / 0.6977),
    ])  # fmt: skip
    def test_two_warpgroups_that_wait_for_a_load_take_no_turns(
        self, block_m: int, block_n: int, warps: int, measured: float
    ) -> None:
        """Two stages over three: h200_triton_autotune.csv, grouped. Without it 128x128 is 1.08 times as long; with it it
        is predicted as 1.34 times as long, where 1.12 were measured."""
        ratio = self.time(Config(block_m, block_n, warps, 2)) / self.time(
            Config(block_m, block_n, warps, 3)
        )
        assert ratio == pytest.approx(measured, rel=0.25)
        assert ratio > (1.2 if warps == 8 else 1.1)

    def test_an_older_compiler_waits_at_every_number_of_stages(self) -> None:
        few, many = (
            self.time(Config(128, 64, 8, stages), "h100", "ibm-triton") for stages in (2, 4)
        )
        assert few / many < 1.15
        assert many > 1.2 * self.time(Config(128, 64, 8, 4), "h100")

    @pytest.mark.parametrize(("gpu", "tile", "warps", "head_dim", "divided"), [
        ("a100", (64, 64), 4, 64, 1), ("a100", (64, 64), 8, 64, 1), ("a100", (64, 128), 4, 64, 1),
        ("a100", (64, 128), 4, 128, 4), ("a100", (64, 32), 8, 128, 8), ("a100", (128, 32), 8, 128, 1),
        ("a100", (32, 32), 2, 64, 2), ("h100", (32, 128), 8, 64, 8), ("h100", (64, 128), 4, 128, 1),
    ])  # fmt: skip
    def test_warps_divide_the_keys_of_low_tiles(
        self, gpu: str, tile: tuple[int, int], warps: int, head_dim: int, divided: int
    ) -> None:
        """warpsPerCTA of the products, as Triton 3.6 compiled them."""
        problem = RECORDED.with_(head_dim=head_dim, head_dim_v=head_dim)
        assert (
            configured(Config(*tile, warps, 2), problem, load_profile(gpu)).loop.key_warps
            == divided
        )

    @pytest.mark.slow
    def test_others_best_tiles(self) -> None:
        """IBM's on an A100 and an H100: two problems of three have theirs among the first five; times from 256 tokens
        on are within 12 %, but one."""
        found = list(load_script("benchmarks/picks.py").published())
        assert len(found) == 26
        assert sum(int(row[5].split()[0]) <= 5 for row in found) >= 21
        ratios = [float(row[6]) for row in found if int(row[1].replace(",", "")) >= 256]
        assert len(ratios) == 18
        assert sorted(abs(ratio - 1) for ratio in ratios)[-2] <= 0.12
