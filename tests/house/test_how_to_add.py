"""docs/how-to-add.md, followed step by step: what it tells to add is added here, and iosim takes it."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counter import count
from executor import execute
from how_to_add import energy, linear_attention
from how_to_add.sinks import window_with_sinks
from scripts import ROOT
from strategies import disagreements

from iosim import AttentionProblem, InputError, Kernel, Tile, predict
from iosim.catalog.algorithms import plan
from iosim.commands.cli import main
from iosim.hardware.profile import check_profile_file
from iosim.kernel.schedule import Start
from iosim.kernel.traffic import Traffic
from iosim.problem.masks import BlockMask
from iosim.problem.masks.files import save_block_mask
from iosim.readers.formula.closed_form import closed_form

LINEAR = Kernel(
    "linear", "linear", Tile(64, 32, 4), registers=128, shared_memory_bytes=49_152, writes_lse=False
)


def l2_rows(traffic: Traffic) -> list[tuple[str, str, str, int]]:
    """SM<->L2 bytes by launch, tensor and direction."""
    return sorted(
        (r.launch, r.tensor, r.direction, int(r.bytes)) for r in traffic if r.level == "l2"
    )


# --- An algorithm -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seq_q", "seq_k", "head_dim"), [(64, 64, 16), (150, 100, 16), (1, 77, 24)]
)
def test_readers_agree_on_a_new_algorithm(seq_q: int, seq_k: int, head_dim: int) -> None:
    problem = AttentionProblem(
        batch=2, heads=3, seq_q=seq_q, seq_k=seq_k, head_dim=head_dim, head_dim_v=16
    )
    chain = plan(problem, LINEAR)
    executed = execute(problem, LINEAR)
    assert l2_rows(executed.traffic) == l2_rows(count(chain)) == l2_rows(closed_form(chain))
    queries, keys = (linear_attention.phi(executed.inputs[name]) for name in "QK")
    output = (
        queries
        @ (keys.swapaxes(-1, -2) @ executed.inputs["V"])
        / (queries @ keys.sum(axis=-2)[..., None])
    )
    np.testing.assert_allclose(executed.outputs["O"], output, rtol=2e-3, atol=2e-3)


def test_a_new_algorithm_is_predicted() -> None:
    problem = AttentionProblem(heads=32, seq_q=4096, head_dim=128)
    prediction = predict(problem, LINEAR, "a100")
    matrix = 32 * 4096 * 128 * 2  # Q, K, V and O each
    state = 32 * (128 * 128 + 128) * 4  # S and z in fp32
    blocks = 4096 // 64
    assert prediction.total("l2", "read") == 3 * matrix + blocks * state
    assert prediction.total("l2", "write") == matrix + state
    assert (
        3 * matrix <= prediction.total("hbm", "read") < 1.05 * 3 * matrix
    )  # the state stays in the L2
    assert prediction.flops == 2 * (
        2 * 4096 * 128 * 128 * 32
    )  # two products over tokens x features
    assert prediction.memory_bytes["workspace"] == state


@pytest.mark.parametrize(
    "more", [{"mask": "causal"}, {"passes": "bwd"}, {"dropout": 0.1}, {"kv_heads": 1}]
)
def test_a_new_algorithm_refuses_what_it_does_not_do(more: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="'linear'"):
        plan(AttentionProblem(heads=4, seq_q=64, head_dim=16, **more), LINEAR)


# --- A library kernel -------------------------------------------------------------------------------------------------


def test_a_new_library_kernel_is_one_file() -> None:
    problem = AttentionProblem(heads=32, seq_q=16_384, head_dim=128, dtype="bf16", mask="causal")
    prediction = predict(problem, "flash-attention-4", "b200")
    file = tomllib.loads((ROOT / "iosim/catalog/libraries/fa4.toml").read_text(encoding="utf-8"))
    tile = next(t for t in file["tile"] if t["head_dim"] == 128 and "max_rows" not in t)
    assert (prediction.kernel.tile.block_q, prediction.kernel.tile.block_k) == (
        tile["block_q"],
        tile["block_k"],
    )
    row = 128 * 2
    visited = sum(
        2 * (n + 1) for n in range(16_384 // 256)
    )  # key blocks of 128 up to the end of each block of 256
    assert prediction.traffic.total("l2", "read", tensor="K") == 32 * visited * 128 * row
    assert prediction.kernel.schedule.start is Start.HEAVY_FIRST


@pytest.mark.parametrize(
    ("gpu", "more", "word"),
    [
        ("h100", {}, "cc 10.0"),
        ("b200", {"bias": "full"}, "bias"),
        ("b200", {"dropout": 0.1}, "dropout"),
    ],
)
def test_a_new_library_kernel_refuses_what_its_file_does(
    gpu: str, more: dict[str, Any], word: str
) -> None:
    with pytest.raises(InputError, match=word):
        predict(
            AttentionProblem(heads=4, seq_q=512, head_dim=128, dtype="bf16", **more), "fa4", gpu
        )


# --- A GPU ------------------------------------------------------------------------------------------------------------


def test_a_new_gpu_is_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    file = ROOT / "hardware_profiles" / "b300.toml"
    assert check_profile_file(file) == []
    command = "predict --kernel fa4 --heads 8 --seq-len 4k --head-dim 128 --dtype bf16 --format json --gpu"
    printed = []
    for gpu in ("b300", str(file)):  # by name, as it ships, and by path, as before it did
        assert main([*command.split(), gpu]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


# --- A reader ---------------------------------------------------------------------------------------------------------


def test_a_new_reader() -> None:
    prediction = predict(AttentionProblem(heads=8, seq_q=2048, head_dim=64), "naive", "a100")
    joules = energy.energy_j(prediction.chain, prediction.traffic, {"l2": 20.0, "hbm": 60.0})
    assert list(joules) == [launch.name for launch in prediction.chain.launches]
    joules_moved = 20e-12 * prediction.traffic.total("l2") + 60e-12 * prediction.traffic.total(
        "hbm"
    )
    assert sum(joules.values()) == pytest.approx(joules_moved, rel=1e-12)
    products = energy.energy_j(prediction.chain, Traffic(), {}, pj_per_flop=0.5)
    assert sum(products.values()) == pytest.approx(
        0.5e-12 * 2 * 2 * 8 * 2048**2 * 64, rel=1e-12
    )  # Q K^T and P V


def test_a_new_reader_imports_no_other_reader() -> None:
    tree = ast.parse(Path(energy.__file__).read_text(encoding="utf-8"))
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[1] for name in names if name.startswith("iosim.")} == {"kernel"}


# --- A mask -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def masked() -> AttentionProblem:
    mask = window_with_sinks(seq=256, window=64, sinks=4, block=16)
    return AttentionProblem(
        batch=1, heads=2, seq_q=256, head_dim=16, mask="blocks", mask_blocks=mask
    )


def test_readers_agree_on_a_new_mask(masked: AttentionProblem) -> None:
    assert disagreements(masked, Kernel("flash", "flash", Tile(32, 16, 4)), seed=0) == []


def test_a_new_mask_keeps_the_window_and_the_sinks(masked: AttentionProblem) -> None:
    i, j = np.mgrid[:256, :256]
    wanted = (j <= i) & ((i - j <= 64) | (j < 4))
    kept_pairs = masked.pair_mask.keeps(i, j)
    assert kept_pairs[wanted].all()
    assert kept_pairs.sum() == masked.pair_mask.kept_pairs(256, 256)
    assert not kept_pairs[200, 16:128].any()  # between the sinks' block and the window's first


def test_the_masks_word_is_the_same_list(masked: AttentionProblem) -> None:
    word = AttentionProblem(
        seq_q=256, mask="window+first", mask_block=16, window=64, global_tokens=4
    ).pair_mask
    assert isinstance(word, BlockMask)
    assert (word.rows.tolist(), word.indices.tolist()) == (
        masked.pair_mask.rows.tolist(),
        masked.pair_mask.indices.tolist(),
    )


def test_a_new_mask_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sinks.npz"
    save_block_mask(str(file), window_with_sinks(seq=8192, window=1024, sinks=4, block=128))
    command = "predict --gpu h200 --kernel flex --heads 8 --seq-len 8k --head-dim 128 --mask blocks --mask-file"
    assert main([*command.split(), str(file)]) == 0
    assert "flex on h200-sxm" in capsys.readouterr().out
