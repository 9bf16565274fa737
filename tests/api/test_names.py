"""The flat, lazy public API: what `import iosim` offers, and what it does not load."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import iosim
from iosim.base.errors import InputError


def test_every_name_is_there_and_documented() -> None:
    for name in iosim.__all__:
        exported = getattr(iosim, name)
        if name != "__version__":
            assert exported.__doc__, name
    assert dir(iosim) == sorted(iosim.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'predcit'"):
        _ = iosim.predcit


def test_import_is_light() -> None:
    code = (
        "import sys, iosim; "
        "print([m for m in ('torch', 'pandas', 'sympy', 'plotly', 'numpy', 'argparse') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_call_of_the_package_docstring() -> None:
    prediction = iosim.predict(
        iosim.AttentionProblem(heads=32, seq_q=4096, head_dim=128), "fa2", "a100"
    )
    assert (
        prediction.total("l2", "read") == 1024 * (128 + 2 * 4096) * 256
    )  # 32 heads x 32 blocks: Q once, K and V whole
    assert str(prediction) == prediction.to_text()
    assert "fa2 on a100-sxm-80gb" in str(prediction)
    assert json.loads(json.dumps(prediction.to_dict())) == prediction.to_dict()


def test_a_kernel_and_a_profile_of_ones_own() -> None:
    kernel = iosim.Kernel("mine", "flash", iosim.Tile(64, 32))
    profile = iosim.load_profile("l4")
    prediction = iosim.predict(iosim.AttentionProblem(heads=2, seq_q=256), kernel, profile)
    assert prediction.kernel is kernel
    assert prediction.profile is profile
    # 2 heads x 4 query blocks: a Q tile of 64 rows, 256 rows of K and of V; 128 bytes a row
    assert prediction.total("l2", "read") == 2 * 4 * (64 + 2 * 256) * 128


def test_settings_over_a_catalog_kernel() -> None:
    problem = iosim.AttentionProblem(heads=32, seq_q=4096, head_dim=128)
    prediction = iosim.predict(problem, "fa2", "a100", overrides=iosim.Overrides(tile=(64, 64)))
    assert prediction.total("l2", "read") == 2048 * (64 + 2 * 4096) * 256
    assert iosim.resolve("fa2", problem, iosim.load_profile("a100")).tile == iosim.Tile(128, 64)


def test_problem_round_trips() -> None:
    problem = iosim.AttentionProblem(
        batch=2,
        heads=8,
        kv_heads=2,
        seq_q=100,
        seq_k=300,
        head_dim=80,
        head_dim_v=48,
        dtype="bfloat16",
        mask="window",
        window=64,
        offset=7,
        dropout=0.1,
        passes="fwd+bwd",
        layout="bshd",
    )
    assert iosim.AttentionProblem.from_dict(json.loads(json.dumps(problem.to_dict()))) == problem
    assert pickle.loads(pickle.dumps(problem)) == problem
    assert problem.dtype == "bf16"


def test_numpy_numbers_are_numbers() -> None:
    problem = iosim.AttentionProblem(
        heads=np.int64(4),
        seq_q=np.int32(128),
        mask="window",
        window=np.int64(5),
        offset=np.int16(-1),
        dropout=np.float32(0.5),
    )  # type: ignore[arg-type]
    assert json.dumps(problem.to_dict())
    assert problem == iosim.AttentionProblem(
        heads=4, seq_q=128, mask="window", window=5, offset=-1, dropout=0.5
    )


def test_derived_defaults() -> None:
    problem = iosim.AttentionProblem(heads=8, seq_q=64)
    assert (problem.kv_heads, problem.seq_k, problem.head_dim_v, problem.output) == (
        8,
        64,
        64,
        "fp16",
    )
    assert iosim.AttentionProblem(dtype="fp8").output == "bf16"
    # The last query faces the last key: query 0 of 64 faces key 36 of 100.
    causal = iosim.AttentionProblem(seq_q=64, seq_k=100, mask="causal")
    assert causal.interval_mask.offset == 36
    assert causal.interval_mask.kept_pairs(64, 100) == sum(range(37, 101))


def test_profiles_are_listed_and_loaded() -> None:
    assert "h200-sxm" in iosim.list_profiles()
    assert iosim.load_profile("h200").sm_count == 132
    assert isinstance(iosim.load_profile("t4"), iosim.HardwareProfile)


def test_errors_are_one_type() -> None:
    with pytest.raises(iosim.InputError):
        iosim.load_profile("nosuch")
    with pytest.raises(ValueError, match="heads 0"):
        iosim.AttentionProblem(heads=0)


def test_numpys_flags_and_arrays_are_pythons_own() -> None:
    """What a notebook has at hand: an array of lengths, the flag of a comparison, a tile as an array."""
    sizes = {"heads": 2, "head_dim": 64}
    lengths = iosim.decode(gpu="a100", context=np.array([64, 128]), **sizes)
    assert [p.context for p in lengths.points] == [64, 128]
    packed = iosim.predict(gpu="a100", kernel="fa2", seq_lens=np.array([1, 2, 3]), **sizes)
    assert packed.problem.seq_lens == (1, 2, 3)
    masked = iosim.predict(
        gpu="a100",
        kernel="fa2",
        seq_len=64,
        causal=np.bool_(True),
        tile=np.array([64, 64]),
        **sizes,
    )
    assert (masked.problem.mask, masked.kernel.tile.block_q) == ("causal", 64)
    with pytest.raises(InputError, match=r"`?seq_len`? \[64, 128\] are 2 lengths"):
        iosim.predict(gpu="a100", kernel="fa2", seq_len=np.array([64, 128]), **sizes)


def test_a_config_of_transformers_is_a_model() -> None:
    """AutoConfig.from_pretrained's object has a model_type and what its file holds."""

    class Config:
        model_type = "llama"

        def to_dict(self) -> dict[str, Any]:
            return {
                "model_type": "llama",
                "hidden_size": 128,
                "num_attention_heads": 2,
                "num_hidden_layers": 3,
            }

    (kind,) = iosim.decode(gpu="a100", model=Config(), context=64).points[0].model.kinds
    assert (kind.count, kind.heads, kind.head_dim) == (3, 2, 64)
    with pytest.raises(InputError, match=r"accepted: a name [|] a path"):
        iosim.decode(gpu="a100", model=object(), context=64)
