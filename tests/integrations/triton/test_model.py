"""The autotuner's hooks: configurations pruned by prediction."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from triton_configs import H200, RECORDED

from iosim.base.errors import InputError
from iosim.integrations.triton.kernel import (
    Config,
    rank,
    try_config,
)
from iosim.integrations.triton.model import TritonModel, tutorial_problem
from iosim.integrations.triton.streaming_mask import streaming_mask


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
        keywords = {
            "num_warps": self.num_warps,
            "num_ctas": self.num_ctas,
            "num_stages": self.num_stages,
        }
        return self.kwargs | keywords


def autotuner_prunes(
    configs: list[StandIn], nargs: dict[str, Any], kwargs: dict[str, Any], by: dict[str, Any]
) -> list[StandIn]:
    """The order of calls in Triton's Autotuner.prune_configs."""
    configs_kept = by["early_config_prune"](configs, nargs, **kwargs)
    top_k = by["top_k"]
    if isinstance(top_k, float):
        top_k = max(1, int(len(configs_kept) * top_k))
    if len(configs_kept) <= top_k:
        return configs_kept
    times = {c: by["perf_model"](**nargs, **kwargs, **c.all_kwargs()) for c in configs_kept}
    return sorted(times, key=lambda c: times[c])[:top_k]


ARGUMENTS = {"Z": 1, "H": 32, "N_CTX": 4096}


CONSTANTS = {"HEAD_DIM": 64, "STAGE": 1}


CONFIGS = [
    StandIn({"BLOCK_M": m, "BLOCK_N": n}, w, s)
    for m in (64, 128, 256)
    for n in (32, 64, 128)
    for w in (4, 8)
    for s in (1, 3)
]


class TestModel:
    def test_the_autotuner_gets_the_best_configurations(self) -> None:
        q = SimpleNamespace(dtype="torch.bfloat16")
        by = TritonModel("h200").prune_configs_by(top_k=4)
        pruned = autotuner_prunes(CONFIGS, {"Q": q, **ARGUMENTS}, CONSTANTS, by)
        ranked = rank(
            RECORDED, H200, [Config(*c.kwargs.values(), c.num_warps, c.num_stages) for c in CONFIGS]
        )
        times = {t.config: t.time_s for t in ranked}
        got = [times[Config(*c.kwargs.values(), c.num_warps, c.num_stages)] for c in pruned]
        assert got == [t.time_s for t in ranked[:4]]

    def test_milliseconds(self) -> None:
        milliseconds = TritonModel("h200").perf_model(
            **ARGUMENTS, **CONSTANTS, BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=3, num_ctas=1
        )
        same = try_config(Config(64, 64), RECORDED.with_(dtype="fp16", output="fp16"), H200)
        assert milliseconds == same.time_s * 1e3
        assert 0.2 < milliseconds < 0.6

    def test_what_does_not_fit_takes_forever_and_is_pruned(self) -> None:
        model = TritonModel("t4", problem=RECORDED.with_(dtype="fp16", output="fp16"))
        assert model.perf_model(BLOCK_M=128, BLOCK_N=128, num_warps=4, num_stages=3) == math.inf
        pruned = model.early_config_prune(CONFIGS, {})
        assert pruned
        assert all(c.num_stages == 1 for c in pruned)

    def test_at_least_one_configuration_stays(self) -> None:
        model = TritonModel("t4", problem=RECORDED.with_(dtype="fp16", output="fp16"))
        staged = [c for c in CONFIGS if c.num_stages == 3]
        pruned = model.early_config_prune(staged, {})
        assert len(pruned) == 1
        assert pruned[0].kwargs == {"BLOCK_M": 64, "BLOCK_N": 32}
        with pytest.raises(InputError, match="at least one"):
            model.early_config_prune([], {})

    def test_other_names_and_the_block_sparse_kernel(self) -> None:
        attention = RECORDED.with_(mask="blocks", mask_blocks=streaming_mask(4096, 128, 3))
        model = TritonModel(
            "h100",
            problem=lambda args: attention,
            names=("TILE_Q_SIZE", "TILE_K_SIZE"),
            kernel="triton-streaming",
        )
        sparse = model.perf_model(
            TILE_Q_SIZE=128, TILE_K_SIZE=128, PIPELINING=3, num_warps=4, num_stages=3
        )
        full = TritonModel("h100", problem=RECORDED).perf_model(
            BLOCK_M=128, BLOCK_N=128, num_warps=4, num_stages=3
        )
        assert sparse < full / 4  # 4 of 32 chunks

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({}, "lack Z, H, N_CTX, HEAD_DIM"),
            ({"Z": 1, "H": 1, "N_CTX": 128}, "lack HEAD_DIM"),
            (
                ARGUMENTS | CONSTANTS | {"Q": SimpleNamespace(dtype="torch.int64")},
                "dtype 'int64' of Q is not known",
            ),
            (ARGUMENTS | CONSTANTS | {"N_CTX": 0}, "seq_q 0"),
        ],
    )
    def test_bad_arguments(self, arguments: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError, match=words):
            tutorial_problem(arguments)

    def test_bad_names_and_top_k(self) -> None:
        with pytest.raises(InputError, match="lack BLOCK_M, BLOCK_N"):
            TritonModel("h100").perf_model(**ARGUMENTS, **CONSTANTS, TILE=64)
        for accepted in (1, 2, 1.0, 0.25):  # one configuration, two, all of them, a quarter
            assert TritonModel("h100").prune_configs_by(accepted)["top_k"] == accepted
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

    @pytest.mark.parametrize(
        "flag",
        [
            {"WINDOW_SIZE": 128},
            {"sliding_window": 64},
            {"HAS_MASK": True},
            {"mask_ptr": SimpleNamespace()},
            {"BLOCK_MASK": 1, "CAUSAL": True},
            {"IS_LOCAL": True},
            {"causal_offset": 8},
            {"mask_type": "prefix"},
        ],
    )
    def test_a_mask_that_is_not_known_is_named(self, flag: dict[str, Any]) -> None:
        with pytest.raises(
            InputError, match=rf"argument {next(iter(flag))} is about a mask, .*problem of your own"
        ):
            TritonModel("h100").problem(ARGUMENTS | {"HEAD_DIM": 64} | flag)

    @pytest.mark.parametrize(
        "flag",
        [
            {"WINDOW": -1},
            {"WINDOW": 0},
            {"mask": None},
            {"USE_MASK": False},
            {"mask": "none"},
            {"stride_mask_b": 64},
        ],
    )
    def test_no_mask_asked_for(self, flag: dict[str, Any]) -> None:
        assert tutorial_problem(ARGUMENTS | {"HEAD_DIM": 64} | flag).mask == "none"
        descriptor = SimpleNamespace(base=SimpleNamespace(dtype="torch.float8_e5m2"))
        assert tutorial_problem(ARGUMENTS | CONSTANTS | {"desc_q": descriptor}).dtype == "fp8"
