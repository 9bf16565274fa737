"""Windows that look back, ahead, or both, and causal together with a window: FlashAttention's words and iosim's."""

from __future__ import annotations

import itertools
import json
import shlex
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from counter import count
from effort import examples
from executor import execute
from executor.reference import dense, dense_mask
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from refusals import refused
from strategies import cases, disagreements, table

import iosim
from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.catalog.libraries.fa3 import window_keys
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import problem_options
from iosim.problem.masks.mask import IntervalMask
from iosim.readers.formula.symbolic import derive, leading

sides = st.none() | st.integers(-1, 40)


def local_mask(seq_q: int, seq_k: int, left: int, right: int) -> npt.NDArray[np.bool_]:
    """What flash_attn_func(window_size=(left, right)) keeps, as its tests build it; -1 is no bound."""
    row, col = np.arange(seq_q)[:, None] + seq_k - seq_q, np.arange(seq_k)[None, :]
    kept_pairs = np.ones((seq_q, seq_k), dtype=np.bool_)
    if left >= 0:
        kept_pairs &= col >= row - left
    if right >= 0:
        kept_pairs &= col <= row + right
    return kept_pairs


@settings(deadline=None, max_examples=examples(150))
@given(
    seq_q=st.integers(1, 40),
    seq_k=st.integers(1, 40),
    left=st.integers(-1, 45),
    right=st.integers(-1, 45),
    causal=st.booleans(),
    block_q=st.integers(1, 16),
    block_k=st.integers(1, 16),
)
def test_the_mask_is_flash_attentions(
    seq_q: int, seq_k: int, left: int, right: int, causal: bool, block_q: int, block_k: int
) -> None:
    if left < 0 and right < 0 and not causal:
        return  # no window at all
    given_right = None if causal and right < 0 else right
    mask = "causal" if causal else "window"
    problem = AttentionProblem(
        seq_q=seq_q,
        seq_k=seq_k,
        mask=mask,
        window=None if left < 0 else left,
        window_right=given_right,
    )
    wanted = local_mask(
        seq_q, seq_k, left, 0 if causal else right
    )  # mha_fwd: if (is_causal) window_size_right = 0
    assert (dense(problem.pair_mask, seq_q, seq_k) == wanted).all()
    assert (dense_mask(problem) == wanted).all()
    pair_mask = problem.pair_mask
    assert pair_mask.kept_pairs(seq_q, seq_k) == wanted.sum()
    assert pair_mask.kept_queries(seq_q, seq_k) == wanted.any(axis=1).sum()
    assert pair_mask.leaves_rows_empty(seq_q, seq_k) == (not wanted.any(axis=1).all())
    visited = pair_mask.key_blocks(seq_q, seq_k, block_q, block_k, 1)
    for n, (first, end) in enumerate(zip(visited.first, visited.end, strict=True)):
        columns = np.flatnonzero(wanted[n * block_q : (n + 1) * block_q].any(axis=0))
        assert (end - first == 0) == (columns.size == 0)
        if columns.size:
            assert (first, end) == (columns[0] // block_k, columns[-1] // block_k + 1)


@pytest.mark.parametrize("algorithm", ["flash", "flash1", "naive", "math"])
@settings(deadline=None, max_examples=examples(12))
@given(data=st.data())
def test_readers_agree(algorithm: str, data: st.DataObject) -> None:
    passes = "fwd" if algorithm == "math" else data.draw(st.sampled_from(["fwd", "bwd", "fwd+bwd"]))
    problem, kernel = data.draw(cases(algorithm, passes))
    left = data.draw(st.none() | st.integers(0, 40))
    right = data.draw(st.integers(1, 40) if left is None else st.sampled_from([-1, 1, 7, 33]))
    problem = problem.with_(mask="window", window=left, window_right=right)
    if algorithm == "flash1":  # the real kernel fills nothing beforehand: no queries without keys
        assume(not problem.pair_mask.leaves_rows_empty(problem.seq_q, problem.seq_k))
    assert disagreements(problem, kernel) == []


def test_the_output_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    problem = AttentionProblem(
        heads=2,
        seq_q=37,
        seq_k=53,
        head_dim=8,
        dtype="fp32",
        mask="window",
        window=6,
        window_right=9,
    )
    done = execute(problem, Kernel("flash", "flash", Tile(16, 8)), seed=3)
    q, k, v = (torch.from_numpy(np.asarray(done.inputs[n], dtype=np.float64)) for n in "QKV")
    mask = torch.from_numpy(local_mask(37, 53, 6, 9))
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert np.allclose(np.asarray(done.outputs["O"]), right.numpy(), atol=1e-5)


def test_bytes_by_hand() -> None:
    """256 tokens in tiles of 64 x 32, 40 keys back and 20 ahead: block n sees keys 64 n - 40 to 64 n + 63 + 20."""
    problem = AttentionProblem(
        heads=1, seq_q=256, head_dim=16, mask="window", window=40, window_right=20
    )
    chain = plan(problem, Kernel("flash", "flash", Tile(64, 32)))
    visited = 3 + 5 + 5 + 4  # keys 0..83, 24..147, 88..211, 152..255
    assert chain.launches[0].domain.visited.count.tolist() == [3, 5, 5, 4]
    read = sum(n_bytes for key, n_bytes in table(count(chain)).items() if key[2] == "read")
    assert read == (256 + 2 * visited * 32) * 16 * 2  # Q once, K and V of every visited block


@pytest.mark.slow
def test_the_leading_term_counts_both_sides() -> None:
    problem = AttentionProblem(
        heads=32, seq_q=65536, head_dim=128, mask="window", window=1024, window_right=512
    )
    text = str(leading(derive(problem, Kernel("flash", "flash", Tile(128, 64))).total()))
    assert "W_r" in text
    assert "W" in text


# --- One mask, one spelling -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ({"mask": "causal", "window": 9}, {"mask": "window", "window": 9}),
        ({"mask": "causal", "window": 9, "window_right": 4}, {"mask": "window", "window": 9}),
        ({"mask": "causal", "window_right": 4}, {"mask": "causal"}),
        ({"mask": "window", "window": 9, "window_right": 0}, {"mask": "window", "window": 9}),
        ({"mask": "window", "window_right": 0}, {"mask": "causal"}),
    ],
)
def test_one_mask_has_one_form(words: dict[str, Any], same: dict[str, Any]) -> None:
    first, other = AttentionProblem(**words), AttentionProblem(**same)
    assert first == other
    assert first.to_dict() == other.to_dict()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"mask": "window"}, "window"),
        ({"mask": "window", "window_right": -1}, "window_right -1 bounds nothing"),
        ({"mask": "none", "window_right": 3}, "window_right 3 contradicts mask 'none'"),
        (
            {"mask": "window+global", "window": 3, "window_right": 3},
            "window_right 3 contradicts mask",
        ),
        ({"mask": "window", "window_right": -2}, "window_right -2 is out of range"),
        ({"mask": "butterfly", "window": 3}, "window 3 contradicts mask 'butterfly'"),
    ],
)
def test_what_is_no_window_is_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        AttentionProblem(seq_q=512, **words)
    assert message in str(error.value)


@pytest.mark.parametrize(("window", "right"), [(None, 7), (12, None), (12, 7), (12, -1), (0, 0)])
def test_a_problem_survives_json_and_the_command_line(
    capsys: pytest.CaptureFixture[str], window: int | None, right: int | None
) -> None:
    problem = AttentionProblem(seq_q=256, heads=4, mask="window", window=window, window_right=right)
    written = problem.to_dict()
    assert AttentionProblem.from_dict(json.loads(json.dumps(written))).to_dict() == written
    words = shlex.join(
        [
            "predict",
            "--kernel",
            "fa2",
            "--seq-len",
            "256",
            *problem_options(problem),
            "--format",
            "json",
        ]
    )
    assert main(shlex.split(words)) == 0
    printed_problem = json.loads(capsys.readouterr().out)["predictions"][0]["problem"]
    assert printed_problem == written
    assert printed_problem["mask"] == "window"
    assert ("window_right" in printed_problem) == (right not in (None, 0))


def test_causal_and_a_window_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for words in ("--causal --window 64", "--window 64", "--causal --window 64 --window-right 32"):
        assert (
            main(
                [
                    "predict",
                    "--kernel",
                    "fa2",
                    "--seq-len",
                    "512",
                    *words.split(),
                    "--format",
                    "json",
                ]
            )
            == 0
        )
        outputs.append(json.loads(capsys.readouterr().out)["predictions"])
    assert outputs[0] == outputs[1] == outputs[2]
    assert (
        iosim.predict(seq_len=512, causal=True, window=64, kernel="fa2").to_dict() == outputs[0][0]
    )


@pytest.mark.parametrize("kernel", ["cutlass", "cudnn", "fa1", "triton"])
def test_kernels_that_look_back_only_say_so(
    capsys: pytest.CaptureFixture[str], kernel: str
) -> None:
    line = refused(
        capsys,
        ["predict", "--gpu", "h200", "--kernel", kernel, "--window-right", "9"],
        "--window-right 9",
    )
    assert "fa2" in line
    assert "fa3" in line


# --- FlashAttention's own rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "gpu", "head_dim", "none", "causal", "window"),
    [
        # csrc/flash_attn/src/flash_fwd_launch_template.h: params.is_causal is false for a window
        ("fa2", "l4", 128, "128x32", "64x64", "128x32"),
        ("fa2", "rtx-3090", 96, "128x64", "64x64", "128x64"),
        ("fa2", "a100", 128, "128x64", "128x64", "128x64"),
        # hopper/tile_size.h, tile_size_fwd_sm90: is_causal, is_local
        ("fa3", "h100", 64, "192x192", "192x128", "192x160"),
        ("fa3", "h100", 96, "192x144", "192x144", "192x128"),
        ("fa3", "h100", 128, "128x176", "128x128", "128x128"),
        ("fa3", "h100", 192, "128x112", "128x112", "128x96"),
        ("fa3", "h100", 256, "128x80", "128x80", "128x64"),
    ],
)
def test_tiles_of_a_window(
    kernel: str, gpu: str, head_dim: int, none: str, causal: str, window: str
) -> None:
    profile = load_profile(gpu)
    back: dict[str, Any] = {"mask": "window", "window": 512}
    both = {**back, "window_right": 512}
    for words, tile in (
        ({"mask": "none"}, none),
        ({"mask": "causal"}, causal),
        (back, window),
        (both, window),
    ):
        problem = AttentionProblem(seq_q=4096, heads=32, head_dim=head_dim, dtype="bf16", **words)
        assert str(resolve(kernel, problem, profile).tile) == tile, words


@pytest.mark.parametrize(
    ("left", "right", "keys"),
    # flash_api.cpp, get_num_splits: left + right + 1 keys, a side without a bound as long as the sequence
    [(99, None, 100), (99, 28, 128), (99, -1, 99 + 4 - 1 + 1), (None, 28, 8191 + 28 + 1)],
)
def test_keys_of_a_window_decide_fa3s_splits(
    left: int | None, right: int | None, keys: int
) -> None:
    problem = AttentionProblem(
        seq_q=4,
        seq_k=8192,
        heads=8,
        kv_heads=1,
        head_dim=128,
        dtype="bf16",
        mask="window",
        window=left,
        window_right=right,
    )
    assert window_keys(problem) == keys


@pytest.mark.parametrize("passes", ["fwd", "bwd"])
def test_wider_windows_move_more(passes: str) -> None:
    """Bytes into the SMs grow with either side, from the causal window to no mask at all."""
    base = AttentionProblem(seq_q=2048, heads=4, head_dim=64, dtype="bf16", passes=passes)
    windows = ((64, 0), (64, 64), (64, 512), (512, 512))
    problems = [
        base.with_(mask="window", window=left, window_right=right) for left, right in windows
    ]
    total_bytes = [
        predict(p, "fa2", "a100", method="bounds").total("l2", "read") for p in [*problems, base]
    ]
    assert all(less < more for less, more in itertools.pairwise(total_bytes))


SIDES = (None, 0, 1, 3)


@pytest.mark.parametrize(("left", "right"), itertools.product(SIDES, SIDES))
def test_what_is_kept_is_counted_as_it_is_kept(left: int | None, right: int | None) -> None:
    """Against the pairs themselves, for every diagonal that meets a few queries and keys, or misses them."""
    for seq_q, seq_k, offset in itertools.product((1, 2, 5), (1, 4, 7), range(-7, 9)):
        mask = IntervalMask(left, right, offset)
        pairs = mask.keeps(np.arange(seq_q)[:, None], np.arange(seq_k)[None, :])
        distance = np.arange(seq_k)[None, :] - np.arange(seq_q)[:, None] - offset
        inside = (left is None or distance >= -left) & (right is None or distance <= right)
        assert (pairs == inside).all()
        case = (seq_q, seq_k, offset)
        assert mask.kept_pairs(seq_q, seq_k) == pairs.sum(), case
        assert mask.kept_queries(seq_q, seq_k) == pairs.any(axis=1).sum(), case
        assert mask.kept_keys(seq_q, seq_k) == pairs.any(axis=0).sum(), case
        assert mask.leaves_rows_empty(seq_q, seq_k) == (not pairs.any(axis=1).all()), case


@pytest.mark.parametrize("ratio", [2, 4])
def test_keys_that_stand_for_several_tokens(ratio: int) -> None:
    for seq_q, seq_k, offset, right in itertools.product(
        (1, 5, 9), (1, 3), range(-5, 6), (0, 1, 3)
    ):
        mask = IntervalMask(None, right, offset, ratio)
        pairs = mask.keeps(np.arange(seq_q)[:, None], np.arange(seq_k)[None, :])
        last_token = (np.arange(seq_k)[None, :] + 1) * ratio - 1
        assert (pairs == (last_token <= np.arange(seq_q)[:, None] + offset + right)).all()
        case = (seq_q, seq_k, offset, right)
        assert mask.kept_pairs(seq_q, seq_k) == pairs.sum(), case
        assert mask.kept_queries(seq_q, seq_k) == pairs.any(axis=1).sum(), case
        assert mask.kept_keys(seq_q, seq_k) == pairs.any(axis=0).sum(), case
