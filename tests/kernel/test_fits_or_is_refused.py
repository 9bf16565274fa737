"""No kernel is predicted on a GPU that it does not fit: what a source says that it takes is checked, and a tile of no
library's is made to fit."""

from __future__ import annotations

import pytest
from effort import quick_every
from refusals import refused

from iosim import AttentionProblem, InputError, load_profile, predict, resolve
from iosim.catalog.libraries import entry_names
from iosim.kernel.kernel import Tile
from iosim.kernel.launch import LaunchRole
from iosim.kernel.tile_rules import backward_shared_bytes

GPUS = ("t4", "a100-sxm-80gb", "rtx-3090", "l4", "h100-sxm", "b200", "rtx-5090")
PICKED_TO_FIT = ("cutlass", "cudnn", "fa3", "fa4", "fa4-deterministic", "fa4-sm90", "flash-sm90")
"""Builds of which no source says what a backward takes: their library launches those that fit."""


def test_flash_attention_1_has_no_backward_of_128_columns_where_a_cta_may_have_64_or_99_kb(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # two buffers of Q and dO, K, V, dQ in fp32 of eight warps, P and dS
    taken = 2 * 2 * 16 * 128 * 2 + 2 * 128 * 128 * 2 + 16 * 128 * 4 * 8 + 2 * 16 * 128 * 2
    assert taken == 152 * 1024
    for gpu in ("t4", "rtx-3090", "l4"):
        line = [
            "predict",
            "--gpu",
            gpu,
            "--kernel",
            "fa1",
            "--pass",
            "bwd",
            "--head-dim",
            "128",
            "--seq-len",
            "256",
        ]
        message = refused(capsys, line)
        assert f"needs {taken:,} bytes of shared memory" in message
        assert "--kernel fa1 at head_dim 128: its tile 16x128" in message  # nobody typed a tile
    problem = AttentionProblem(heads=4, seq_q=512, head_dim=128, passes="bwd")
    assert predict(problem, "fa1", "a100").kernel.backward.shared_memory_bytes == taken
    predict(AttentionProblem(heads=4, seq_q=512, head_dim=64, passes="bwd"), "fa1", "t4")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--tile 512x512", "--tile 512x512"),
        ("--stages 8", "--stages 8: flash at head_dim 256, tile 64x64"),
        ("--warps 32", "--warps 32: flash, tile 64x64"),
    ],
)
def test_a_refusal_of_a_tile_names_what_was_typed(
    typed: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"predict --gpu h100 --kernel flash --head-dim 256 {typed}"
    assert message in refused(capsys, line.split())
    with pytest.raises(InputError) as error:
        predict(AttentionProblem(heads=4, seq_q=512, head_dim=128, passes="bwd"), "fa1", "t4")
    assert "tile" not in error.value.marked.split(":")[0]


@pytest.mark.parametrize("gpu", quick_every(GPUS, 3))
def test_what_a_kernel_is_said_to_take_fits_or_is_refused(gpu: str) -> None:
    allowed = load_profile(gpu).need_int("shared_memory_per_block_optin_bytes")
    checked = 0
    for name in entry_names():
        for head_dim in (64, 128, 256):
            for passes in ("fwd", "bwd"):
                problem = AttentionProblem(heads=2, seq_q=256, head_dim=head_dim, passes=passes)
                try:
                    call = predict(problem, name, gpu, method="bounds").call
                except InputError:
                    continue
                taken = [
                    launch.resources.shared_memory_bytes or 0 for launch in call.chain.launches
                ]
                assert max(taken) <= allowed, (name, head_dim, passes)
                main = [n for n in call.chain.launches if n.role is LaunchRole.MAIN_BACKWARD]
                unknown = any(n.resources.shared_memory_bytes is None for n in main)
                if unknown and name not in PICKED_TO_FIT:  # by FlashAttention-2's layout then
                    tile = call.kernel.tile_backward
                    assert backward_shared_bytes(problem, tile) <= allowed, (name, head_dim)
                checked += 1
    assert checked > 20


@pytest.mark.parametrize("gpu", quick_every(GPUS, 3))
@pytest.mark.parametrize("head_dim", [32, 64, 128, 192, 256])
def test_the_backward_of_any_tile_has_one_that_fits(gpu: str, head_dim: int) -> None:
    profile = load_profile(gpu)
    problem = AttentionProblem(heads=2, seq_q=1024, head_dim=head_dim, passes="bwd")
    tile = resolve("flash", problem, profile).tile_backward
    assert backward_shared_bytes(problem, tile) <= profile.need_int(
        "shared_memory_per_block_optin_bytes"
    )


def fa2_backward_bytes(tile: Tile, head_dim: int, q_buffers: int, v_in_registers: bool) -> int:
    """kSmemSize1colblock of flash-attention's kernel_traits.h, of two bytes an element."""
    q_and_do = (q_buffers + 1) * tile.block_q * head_dim
    k_and_v = 2 * tile.block_k * head_dim
    scores = 2 * tile.block_q * tile.block_k
    beside = max(k_and_v, k_and_v // 2 + scores) if v_in_registers else k_and_v + scores
    return 2 * (q_and_do + beside)


@pytest.mark.parametrize(
    ("gpu", "head_dim", "tile", "q_buffers", "v_in_registers"),
    [
        ("l4", 32, "128x128", 2, True),
        ("l4", 64, "64x128", 2, True),
        ("l4", 96, "64x128", 2, True),
        ("l4", 128, "64x64", 2, True),
        ("l4", 192, "64x64", 1, True),
        ("l4", 256, "64x32", 1, True),
        ("a100", 64, "128x128", 2, False),
        ("a100", 128, "64x128", 2, False),
        ("a100", 192, "64x64", 2, False),
        ("a100", 256, "64x64", 1, False),
        ("h100", 256, "64x64", 2, False),
    ],
)
def test_flash_attention_2_has_a_backward_for_what_a_cta_may_have(
    gpu: str, head_dim: int, tile: str, q_buffers: int, v_in_registers: bool
) -> None:
    problem = AttentionProblem(heads=2, seq_q=512, head_dim=head_dim, passes="bwd")
    kernel = resolve("fa2", problem, load_profile(gpu))
    assert f"{kernel.tile_backward.block_q}x{kernel.tile_backward.block_k}" == tile
    taken = fa2_backward_bytes(kernel.tile_backward, head_dim, q_buffers, v_in_registers)
    assert kernel.backward.shared_memory_bytes == taken
    assert taken <= load_profile(gpu).need_int("shared_memory_per_block_optin_bytes")


@pytest.mark.parametrize("gpu", ["rtx-3090", "l4", "rtx-5090"])
def test_a_backward_without_a_build_that_fits_is_refused(gpu: str) -> None:
    problem = AttentionProblem(heads=2, seq_q=512, head_dim=256, passes="bwd")
    with pytest.raises(InputError, match="fa2 has no backward tile"):
        predict(problem.with_(dropout=0.1), "fa2", gpu)
    predict(problem, "fa2", gpu, method="bounds")


@pytest.mark.parametrize(("head_dim", "taken"), [(192, 114_688), (256, 147_456)])
def test_the_cute_backward_of_wide_heads_does_not_fit_a_consumer_blackwell(
    head_dim: int, taken: int
) -> None:
    problem = AttentionProblem(heads=2, seq_q=512, head_dim=head_dim, passes="bwd")
    # Q, dO, K and V of 64 rows, P and dS
    assert taken == 2 * (4 * 64 * head_dim + 2 * 64 * 64)
    with pytest.raises(InputError, match=f"needs {taken:,} bytes of shared memory"):
        predict(problem, "fa4-sm120", "rtx-5090")
    predict(problem.with_(head_dim=128, head_dim_v=128), "fa4-sm120", "rtx-5090", method="bounds")


@pytest.mark.parametrize(
    ("kernel", "gpu", "head_dim", "rows", "ahead", "tile"),
    [
        # Sides of the tutorial's two loops, 32 rows a step, five stages: four of Q and dO ahead.
        ("triton", "a100", 128, 32, 4, (32, 128)),
        ("triton", "rtx-3090", 256, 32, 4, (32, 128)),
        ("triton", "t4", 128, 32, 1, (32, 128)),  # no copies run ahead
        # _get_default_config_bwd: the loop over keys steps by the longer side.
        ("triton-streaming", "a100", 64, 128, 2, (32, 128)),
        ("triton-streaming", "l4", 128, 128, 2, (64, 128)),
        ("triton-streaming", "h100", 256, 64, 1, (64, 64)),
        ("triton-streaming", "t4", 256, 16, 1, (16, 16)),
    ],
)
def test_a_backward_in_triton_has_its_source_s_tile_and_fits_or_is_refused(
    kernel: str, gpu: str, head_dim: int, rows: int, ahead: int, tile: tuple[int, int]
) -> None:
    problem = AttentionProblem(heads=2, seq_q=512, head_dim=head_dim, passes="bwd")
    resolved = resolve(kernel, problem, load_profile(gpu))
    profile = load_profile(gpu)
    assert (resolved.tile_backward.block_q, resolved.tile_backward.block_k) == tile
    taken = 2 * (ahead * rows * 2 * head_dim + tile[0] * tile[1])  # two operands, and P or dS
    assert resolved.backward.shared_memory_bytes == taken
    if taken <= profile.need_int("shared_memory_per_block_optin_bytes"):
        predict(problem, kernel, gpu, method="bounds")
    else:
        with pytest.raises(InputError, match=f"needs {taken:,} bytes of shared memory"):
            predict(problem, kernel, gpu, method="bounds")


def test_a_backward_of_shared_keys_holds_the_values_of_all_heads() -> None:
    """Reuse Attention, 8 value heads of 64 columns in 16 x 16 tiles: Q of 64 columns, dO, V of 512 and K of 64."""
    problem = AttentionProblem(heads=8, seq_q=256, head_dim=64, passes="bwd", dtype="fp32")
    taken = 4 * (16 * (64 + 512) + 16 * (64 + 512) + 2 * 16 * 16)
    assert resolve("uniform", problem, load_profile("a100")).backward.shared_memory_bytes == taken
    with pytest.raises(InputError, match=f"needs {taken:,} bytes of shared memory"):
        predict(problem, "uniform", "t4", method="bounds")
    # in half of the bytes it fits
    predict(problem.with_(dtype="fp16"), "uniform", "t4", method="bounds")
