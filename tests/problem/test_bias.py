"""Bias, stored masks, key padding and dropout's random state: bytes, numbers, and who takes what."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from counter import count
from effort import examples
from executor import execute, random_arrays, reference
from executor.reference import dense_mask, dropout_factor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered import objects_of, wrong_bytes
from refusals import refused
from strategies import GRADIENT_FACTOR, TOLERANCE, cases, disagreements, on_arrays, table

import iosim
from iosim import predict
from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.algorithms.flash_options import FlashOptions
from iosim.catalog.algorithms.naive import NaiveOptions
from iosim.catalog.algorithms.terms import TermOptions
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.schedule import Order, Schedule
from iosim.kernel.shared_memory import estimate
from iosim.kernel.unit import UNITS, MatrixUnit
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import FIELDS
from iosim.readers.bounds import memory
from iosim.readers.formula.symbolic import derive
from iosim.readers.replay.lowering import lower

SLOW = settings(
    max_examples=examples(50),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
PAIRS = [
    ("flash", "fwd"),
    ("flash", "bwd"),
    ("flash", "fwd+bwd"),
    ("naive", "fwd"),
    ("naive", "bwd"),
    ("naive", "fwd+bwd"),
    ("math", "fwd"),
]
SMALL = AttentionProblem(
    batch=2, heads=4, kv_heads=2, seq_q=21, seq_k=27, head_dim=8, head_dim_v=10, mask="causal"
)


@st.composite
def term_cases(draw: st.DrawFn, algorithm: str, passes: str) -> tuple[AttentionProblem, Kernel]:
    """A case of the other tests with some of the terms, shared along any axes, in any type."""
    problem, kernel = draw(cases(algorithm, passes))
    biases = ("none", "full", "full") if algorithm == "math" else ("none", "full", "full", "alibi")
    values: dict[str, Any] = {
        "bias": draw(st.sampled_from(biases)),
        "key_padding": draw(st.booleans()),
    }
    if values["bias"] == "full":
        values["bias_shared"] = draw(st.sampled_from((None, "none", "heads", "batch", "both")))
        values["bias_grad"] = passes != "fwd" and draw(st.booleans())
    if values["bias"] == "alibi":
        values["bias_shared"] = draw(st.sampled_from((None, "none", "batch")))
        if (
            algorithm == "naive"
        ):  # far from the diagonal half-precision scores lose more than the tests allow
            values |= {"dtype": "fp32", "output": "fp32"}
    if problem.mask != "none":
        values["mask_storage"] = draw(st.sampled_from(("implicit", "bool", "additive")))
    if values["bias"] == "full" or values.get("mask_storage") == "additive":
        values["bias_dtype"] = draw(
            st.sampled_from((None, "fp32", problem.output if problem.output != "tf32" else None))
        )
    options = kernel.options
    if isinstance(options, TermOptions):
        options = replace(
            options, converts_mask=draw(st.booleans()), padding_is_added=draw(st.booleans())
        )
    if isinstance(options, NaiveOptions):
        options = replace(options, dropout_mask_bytes=draw(st.sampled_from((1, 2))))
    return problem.with_(**values), replace(kernel, options=options)


@pytest.mark.parametrize(("algorithm", "passes"), PAIRS)
@SLOW
@given(data=st.data())
def test_readers_and_attention_agree(algorithm: str, passes: str, data: st.DataObject) -> None:
    problem, kernel = data.draw(term_cases(algorithm, passes))
    seed = data.draw(st.integers(0, 3))
    assert disagreements(problem, kernel, seed=seed) == []


@pytest.mark.parametrize("algorithm", ["flash", "naive"])
@SLOW
@given(data=st.data())
def test_the_gradient_of_the_bias(algorithm: str, data: st.DataObject) -> None:
    problem, kernel = data.draw(
        term_cases(algorithm, data.draw(st.sampled_from(("bwd", "fwd+bwd"))))
    )
    shared = data.draw(st.sampled_from((None, "heads", "batch", "both")))
    problem = problem.with_(bias="full", bias_grad=True, bias_shared=shared, bias_dtype="fp32")
    done = execute(problem, kernel)
    right = reference(problem, done.inputs)["dBias"]
    limit = TOLERANCE[problem.dtype] * GRADIENT_FACTOR * max(1.0, np.abs(right).max())
    assert done.outputs["dBias"].shape == right.shape
    np.testing.assert_allclose(done.outputs["dBias"], right, rtol=0, atol=limit)


@pytest.mark.parametrize(("algorithm", "passes"), [p for p in PAIRS if p[1] != "fwd+bwd"])
@SLOW
@given(data=st.data())
def test_the_replay_moves_the_counted_bytes(
    algorithm: str, passes: str, data: st.DataObject
) -> None:
    chain = plan(*data.draw(term_cases(algorithm, passes)))
    assert wrong_bytes(chain, lower(chain, spill_slots=8)) == []


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_reference_is_what_autograd_says(data: st.DataObject) -> None:
    torch = pytest.importorskip(
        "torch", reason="torch, the oracle of the gradients, is not installed"
    )
    problem, _ = data.draw(term_cases("flash", "fwd+bwd"))
    problem = problem.with_(
        mask="none",
        window=None,
        window_right=None,
        offset=None,
        mask_storage="implicit",
        dtype="fp32",
        bias_dtype=None,
    )
    arrays = random_arrays(problem, 1)
    arrays |= {"padding": np.ones_like(arrays["padding"])} if problem.key_padding else {}
    q, k, v = (torch.tensor(arrays[n], dtype=torch.float64, requires_grad=True) for n in "QKV")
    keys, values = (x.repeat_interleave(problem.group, dim=1) for x in (k, v))
    scores = q @ keys.transpose(-1, -2) / problem.head_dim**0.5
    bias = torch.tensor(arrays.get("bias", np.zeros((1, 1, 1, 1))), requires_grad=True)
    scores = scores + bias
    if problem.bias == "alibi":
        i = torch.arange(problem.seq_q)[:, None]
        j = torch.arange(problem.seq_k)[None, :]
        scores = (
            scores - torch.tensor(arrays["slopes"]) * (i + problem.seq_k - problem.seq_q - j).abs()
        )
    factor = torch.tensor(dropout_factor(problem, 1)) if problem.dropout else 1.0
    output = (scores.softmax(-1) * factor) @ values
    output.backward(torch.tensor(arrays["dO"]))
    right = reference(problem, arrays, 1)
    named = {"O": output.detach(), "dQ": q.grad, "dK": k.grad, "dV": v.grad}
    named |= {"dBias": bias.grad} if problem.bias_grad else {}
    for name, tensor in named.items():
        np.testing.assert_allclose(right[name], tensor.numpy(), rtol=1e-9, atol=1e-9, err_msg=name)


def test_reference_masks_keys_as_torch_does() -> None:
    torch = pytest.importorskip("torch", reason="torch, the oracle of attention, is not installed")
    problem = AttentionProblem(
        batch=2,
        heads=3,
        seq_q=9,
        seq_k=16,
        head_dim=8,
        dtype="fp32",
        bias="full",
        bias_shared="heads",
        key_padding=True,
        mask="causal",
    )
    arrays = random_arrays(problem, 2)
    q, k, v = (torch.tensor(arrays[n], dtype=torch.float64) for n in "QKV")
    kept_pairs = dense_mask(problem) & (arrays["padding"].reshape(2, 1, 1, 16) > 0)
    kept_pairs[..., 0] = True  # every row keeps a key: torch gives NaN where none is kept
    arrays["padding"][:, :, 0] = 1.0
    mask = np.where(kept_pairs, arrays["bias"], -np.inf)
    right = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.tensor(mask)
    ).numpy()
    np.testing.assert_allclose(reference(problem, arrays)["O"], right, rtol=1e-12, atol=1e-12)


# --- the arithmetic ---------------------------------------------------------------------------------------------------

N, H, B = 4096, 32, 2
LARGE = AttentionProblem(batch=B, heads=H, seq_q=N, head_dim=128)


def l2(
    problem: AttentionProblem,
    kernel: Kernel,
    tensor: str,
    direction: str,
    launch: str | None = None,
) -> int:
    return int(count(plan(problem, kernel)).total("l2", direction, tensor=tensor, launch=launch))


def flash(**changes: Any) -> Kernel:
    return Kernel("flash", "flash", Tile(128, 64), **changes)


@pytest.mark.parametrize("shared", [None, "heads", "batch", "both"])
def test_a_full_bias_is_read_once_a_head_whatever_shares_it(shared: str | None) -> None:
    problem = LARGE.with_(bias="full", bias_shared=shared)
    assert (
        l2(problem, flash(), "bias", "read") == B * H * N * N * 2
    )  # each head reads every tile once, in fp16
    sequences = B if shared in (None, "heads") else 1
    heads = H if shared in (None, "batch") else 1
    assert plan(problem, flash()).tensors["bias"].bytes == sequences * heads * N * N * 2
    assert Call.of(problem, flash(), load_profile("a100")).bounds.compulsory_read == (
        sequences * heads * N * N * 2 + 3 * B * H * N * 128 * 2  # the bias, and Q, K, V
    )


def test_a_causal_bias_is_read_where_tiles_are_visited() -> None:
    problem = LARGE.with_(bias="full", mask="causal")
    visited = sum(
        -(-(i + 1) * 128 // 64) for i in range(N // 128)
    )  # key blocks of 64 up to each query block's end
    assert l2(problem, flash(), "bias", "read") == B * H * visited * 128 * 64 * 2
    stored = problem.with_(mask_storage="additive", bias_dtype="fp32")
    assert (
        l2(stored, flash(), "bias", "read") == B * H * N * N * 4
    )  # a mask in a tensor skips nothing
    assert l2(stored, flash(), "mask", "read") == B * H * N * N * 4


def test_slopes_and_padding() -> None:
    alibi = LARGE.with_(bias="alibi")
    chain = plan(alibi, flash())
    assert chain.tensors["slopes"].bytes == 32 * 4
    assert l2(alibi, flash(), "slopes", "read") == B * H * (N // 128) * 32  # one sector a CTA
    slopes = plan(alibi.with_(bias_shared="none"), flash()).tensors["slopes"]
    assert slopes.bytes == B * 32 * 4
    padded = LARGE.with_(key_padding=True)
    assert plan(padded, flash()).tensors["padding"].bytes == B * N
    assert (
        l2(padded, flash(), "padding", "read") == B * H * (N // 128) * N
    )  # 64-byte tiles: whole sectors already
    wide = flash(options=FlashOptions(padding_is_added=True))
    assert l2(padded, wide, "padding", "read") == B * H * (N // 128) * N * 2


def test_dropout_leaves_sixteen_bytes_where_naive_leaves_a_mask() -> None:
    problem = LARGE.with_(dropout=0.1, passes="fwd+bwd")
    chain = plan(problem, flash())
    assert chain.tensors["rng_state"].bytes == 16  # Philox seed and offset
    assert l2(problem, flash(), "rng_state", "write", "main") == 32  # once a launch, one sector
    assert (
        l2(problem, flash(), "rng_state", "read", "bwd.main") == B * H * (N // 64) * 32
    )  # once a CTA
    naive = Kernel("naive", "naive", Tile(128, 128))
    stored = plan(problem, naive).tensors["dropout_mask"]
    assert stored.bytes == B * H * N * N
    assert (
        l2(problem, naive, "dropout_mask", "write")
        == l2(problem, naive, "dropout_mask", "read")
        == stored.bytes
    )
    scaled = naive.with_(options=NaiveOptions(dropout_mask_bytes=2))
    assert l2(problem, scaled, "dropout_mask", "write") == 2 * stored.bytes
    assert "rng_state" not in plan(problem, naive).tensors
    assert "rng_state" not in plan(LARGE, flash()).tensors


def test_naive_makes_a_pass_of_each_term() -> None:
    naive = Kernel("naive", "naive", Tile(128, 128))
    square = B * H * N * N
    plain = count(plan(LARGE, naive)).total("l2")
    biased = count(plan(LARGE.with_(bias="full"), naive)).total("l2")
    assert biased - plain == square * (2 + 2 + 2)  # scores in, bias in, scores out
    alibi = count(plan(LARGE.with_(bias="alibi"), naive)).total("l2")
    # materialised for one sequence from a sector of slopes a CTA of 4 rows, then added as above
    assert alibi - plain == H * N * N * 2 + H * (N // 4) * 32 + square * 6
    padded = count(plan(LARGE.with_(key_padding=True), naive)).total("l2")
    assert (
        padded - plain == square * 4 + B * H * (N // 4) * N
    )  # the bytes of all keys, once a CTA of 4 rows
    masked = LARGE.with_(mask="causal")
    for storage, size in (("implicit", 1), ("bool", 1), ("additive", 2)):
        masked_bytes = count(plan(masked.with_(mask_storage=storage), naive)).total("l2")
        assert masked_bytes - plain == square * (4 + size)


def test_an_additive_mask_has_no_pass_backward() -> None:
    naive = Kernel("naive", "naive", Tile(128, 128))
    back = LARGE.with_(mask="causal", passes="bwd")
    names = {
        s: [x.name for x in plan(back.with_(mask_storage=s), naive).launches]
        for s in ("bool", "additive")
    }
    assert "bwd.mask" in names["bool"]
    assert "bwd.mask" not in names["additive"]


def test_the_bias_gradient_is_summed_where_it_is_shared() -> None:
    back = LARGE.with_(bias="full", bias_grad=True, passes="bwd")
    whole = plan(back, flash())
    assert [x.name for x in whole.launches] == ["bwd.dot", "bwd.main", "bwd.convert"]
    assert l2(back, flash(), "dBias", "write") == B * H * N * N * 2
    shared = back.with_(bias_shared="both")
    assert (
        l2(shared, flash(), "dBias_heads", "write")
        == l2(shared, flash(), "dBias_heads", "read")
        == B * H * N * N * 2
    )
    assert l2(shared, flash(), "dBias", "write") == N * N * 2
    assert memory(plan(shared, flash()))["workspace"] >= B * H * N * N * 2
    causal = plan(back.with_(mask="causal"), flash())
    assert (
        causal.launches[1].name == "bwd.fill_bias"
    )  # tiles that nothing visits are zero all the same


def test_a_mask_of_bytes_is_converted_first_where_the_library_does() -> None:
    prediction = predict(
        LARGE.with_(mask="causal", mask_storage="bool"), "cutlass", "a100", method="capacity"
    )
    assert [x.name for x in prediction.chain.launches] == ["convert_mask", "main"]
    assert prediction.chain.tensors["mask"].bytes == N * N
    assert prediction.chain.tensors["mask_added"].bytes == 2 * N * N
    free = predict(
        LARGE.with_(mask="causal", mask_storage="bool"), "flash", "a100", method="capacity"
    )
    assert [x.name for x in free.chain.launches] == ["main"]


def test_formula_in_symbols() -> None:
    formula = derive(LARGE.with_(bias="full", bias_shared="heads"), flash(writes_lse=False))
    assert str(formula.total("read", tensor="bias")) == "B*H*N**2*e"
    assert formula.numbers().rows == tuple(
        r
        for r in count(plan(LARGE.with_(bias="full", bias_shared="heads"), flash(writes_lse=False)))
    )


def test_formula_command(capsys: pytest.CaptureFixture[str]) -> None:
    """A full bias is read once a pair, whatever the fast memory's size: the papers' bound does not hold for it."""
    assert main(["formula", "flash", "--bias", "full", "--bias-shared", "both"]) == 0
    out = capsys.readouterr().out
    assert "bias   read   B*H*N^2*e\n" in out
    assert "leading term: B*H*N^2*e*(1 + 2*d/B_q)" in out
    assert "= M/d^2 + 8" in out  # N^2 / (N^2 d^2 / M), and 2 d / B_q with blocks of M / 4d


# --- HBM --------------------------------------------------------------------------------------------------------------


def bias_reads(shared: str | None, method: str, order: str = "query") -> int:
    problem = AttentionProblem(heads=16, seq_q=8192, head_dim=64, bias="full", bias_shared=shared)
    kernel = Kernel("flash", "flash", Tile(128, 128), schedule=Schedule(order=Order(order)))
    prediction = predict(problem, kernel, "a100", method=method)
    return int(prediction.traffic.total("hbm", "read", tensor="bias"))


def test_a_shared_bias_larger_than_l2_is_read_again_by_each_round_of_heads() -> None:
    """8192^2 x 2 bytes = 134 MB does not stay in 40 MB of L2: by query order every head, one or two of them at a time,
    reads it; with heads fastest all heads share a tile while it is there."""
    bias_bytes = 8192 * 8192 * 2
    assert bias_reads(None, "replay") == pytest.approx(16 * bias_bytes, rel=0.01)
    by_query = bias_reads("heads", "replay")
    by_head = bias_reads("heads", "replay", "head")
    assert by_head < 1.5 * bias_bytes < by_query
    assert bias_reads("heads", "capacity") == pytest.approx(by_query, rel=0.6)
    assert bias_reads("heads", "capacity", "head") == bias_bytes


def test_a_shared_mask_that_fits_is_read_once() -> None:
    problem = AttentionProblem(heads=4, seq_q=1024, head_dim=64, mask="causal", mask_storage="bool")
    for kernel in ("naive", "flash"):
        for method in ("replay", "capacity"):
            prediction = predict(problem, kernel, "h200", method=method)
            read = prediction.traffic.total("hbm", "read", tensor="mask")
            assert read == pytest.approx(1024 * 1024, rel=0.2), (kernel, method)


def test_every_sequence_reads_its_own_bias() -> None:
    """Work tiles of sequence 1 move only objects of its half of a [batch, 1, N, N] bias; slopes go by the head."""
    problem = AttentionProblem(
        batch=2, heads=3, seq_q=64, head_dim=8, bias="full", bias_shared="heads"
    )
    chain = plan(problem, Kernel("flash", "flash", Tile(16, 16)))
    (low,) = lower(chain, 4).launches
    (template,) = (t for t in low.loop if t.tensor == "bias")
    tiles = np.repeat(np.arange(low.tiles), 4)
    objects = objects_of(template, tiles, np.tile(np.arange(4), low.tiles))
    lowered = lower(chain, 4)
    bias_lines = np.flatnonzero(lowered.owner == lowered.tensors.index("bias"))
    half = bias_lines.size // 2
    sequence = low.head[tiles] // 3
    assert bias_lines.size == 2 * 16
    np.testing.assert_array_equal((objects[:, 0] - bias_lines[0]) // half, sequence)
    alibi = plan(
        problem.with_(bias="alibi", bias_shared=None), Kernel("flash", "flash", Tile(16, 16))
    )
    lowered_alibi = lower(alibi, 4)
    (slope,) = (t for t in lowered_alibi.launches[0].prologue if t.tensor == "slopes")
    first = int(np.flatnonzero(lowered_alibi.owner == lowered_alibi.tensors.index("slopes"))[0])
    np.testing.assert_array_equal(slope.base - first, lowered_alibi.launches[0].head % 3)


def test_capacity_gives_every_term_a_row() -> None:
    problem = LARGE.with_(
        bias="full",
        key_padding=True,
        dropout=0.1,
        mask="causal",
        mask_storage="additive",
        passes="fwd+bwd",
        bias_grad=True,
    )
    by_tensor = Call.of(problem, flash(), load_profile("a100")).capacity().tensors("hbm")
    assert {
        ("bias", "read"),
        ("padding", "read"),
        ("mask", "read"),
        ("rng_state", "write"),
        ("rng_state", "read"),
        ("dBias", "write"),
    } <= set(by_tensor)


# --- who takes what ---------------------------------------------------------------------------------------------------

ASKED = {
    "bias": ({"bias": "full"}, "bias=full"),
    "alibi": ({"bias": "alibi"}, "bias=alibi"),
    "bias_grad": ({"bias": "full", "bias_grad": True, "passes": "fwd+bwd"}, "bias_grad=True"),
    "key_padding": ({"key_padding": True}, "key_padding=True"),
    "mask_tensor": ({"mask": "causal", "mask_storage": "bool"}, "mask_storage=bool"),
    "dropout": ({"dropout": 0.1}, "dropout 0.1"),
}
TAKES = {  # as the libraries' interfaces have them: flash_attn_func, hopper's, attn_mask of PyTorch, cuDNN's bias
    "naive": {"bias", "alibi", "bias_grad", "key_padding", "mask_tensor", "dropout"},
    "eager": {"bias", "alibi", "bias_grad", "key_padding", "mask_tensor", "dropout"},
    "flash": {"bias", "alibi", "bias_grad", "key_padding", "mask_tensor", "dropout"},
    "math": {"bias", "key_padding", "mask_tensor", "dropout"},
    "cutlass": {"bias", "bias_grad", "key_padding", "mask_tensor", "dropout"},
    "cudnn": {"bias", "mask_tensor", "dropout"},
    "fa1": {"dropout"},
    "flash1": {"dropout"},
    "fa2": {"alibi", "dropout"},
    "fa3": set(),
    "triton": set(),
}


@pytest.mark.parametrize("kernel", TAKES)
@pytest.mark.parametrize("term", ASKED)
def test_a_kernel_takes_it_or_names_those_that_do(kernel: str, term: str) -> None:
    values, option = ASKED[term]
    problem = AttentionProblem(heads=4, seq_q=512, head_dim=64, **values)
    if kernel == "math" and problem.backward:
        pytest.skip("math has no backward")
    if term in TAKES[kernel]:
        assert predict(problem, kernel, "h100", method="bounds").total("l2") > 0
        return
    with pytest.raises(InputError) as refusal:
        predict(problem, kernel, "h100", method="bounds")
    if term == "bias_grad" and "bias" not in TAKES[kernel]:
        option = "bias=full"
    assert str(refusal.value).startswith(f"{option}: kernel {kernel} ")
    names = str(refusal.value).split("accepted by: ")[1].split(", ")
    word = "bias" if option == "bias=full" else term
    assert {k for k, taken in TAKES.items() if word in taken} <= set(names)
    assert kernel not in names


def test_the_list_of_kernels_says_who_takes_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "list", "--format", "json"]) == 0
    listed = {
        k["name"]: set(k["takes"].split()) for k in json.loads(capsys.readouterr().out)["kernels"]
    }
    for kernel, taken in TAKES.items():
        assert listed[kernel] & set(ASKED) == taken


def test_one_tensor_of_scores_at_a_time() -> None:
    problem = AttentionProblem(heads=4, seq_q=512, head_dim=64, bias="full", key_padding=True)
    for kernel in ("cutlass", "math"):
        with pytest.raises(
            InputError, match=r"key_padding=True beside bias=full: kernel \w+ takes one tensor"
        ):
            predict(problem, kernel, "a100", method="bounds")
    assert predict(problem, "flash", "a100", method="bounds").total("l2") > 0


@pytest.mark.parametrize(
    ("values", "kernel"),
    [
        ({"bias": "full"}, "cutlass"),
        ({"mask": "causal", "mask_storage": "additive"}, "cutlass"),
        ({"bias": "full", "dtype": "fp32"}, "cutlass"),
        ({}, "fa2"),
        ({"dropout": 0.1}, "fa2"),
    ],
)
def test_what_pytorch_chooses(values: dict[str, Any], kernel: str) -> None:
    problem = AttentionProblem(heads=4, seq_q=512, head_dim=64, **values)
    assert predict(problem, "sdpa", "a100", method="bounds").kernel.name == kernel


def test_an_algorithm_without_a_place_for_it_refuses() -> None:
    for algorithm in ("flash1", "minimal"):
        with pytest.raises(
            InputError,
            match=r"bias=full: kernel 'mine' \(algorithm \w+\).*accepted by algorithms: .*flash",
        ):
            plan(SMALL.with_(bias="full", mask="none"), Kernel("mine", algorithm, Tile(3, 3)))


def test_heads_of_a_group_are_not_packed_over_a_bias() -> None:
    problem = AttentionProblem(heads=8, kv_heads=2, seq_q=1, seq_k=512, head_dim=64)
    assert predict(problem, "fa2", "a100", method="bounds").chain.launches[0].domain.pack == 4
    assert (
        predict(problem.with_(bias="alibi"), "fa2", "a100", method="bounds")
        .chain.launches[0]
        .domain.pack
        == 1
    )
    assert (
        disagreements(
            problem.with_(seq_k=30, bias="alibi"),
            Kernel("f", "flash", Tile(4, 8), packs_group=True),
        )
        == []
    )


BAD: list[tuple[dict[str, Any], str]] = [
    ({"bias": "partial"}, "bias 'partial' is not known; accepted: none, full, alibi"),
    ({"bias_shared": "heads"}, "bias_shared 'heads' contradicts bias 'none'"),
    (
        {"bias": "full", "bias_shared": "rows"},
        "bias_shared 'rows' is not known; accepted: none, heads, batch, both",
    ),
    ({"bias": "alibi", "bias_shared": "heads"}, "bias_shared 'heads' contradicts bias 'alibi'"),
    ({"bias_grad": True}, "bias_grad=True contradicts bias 'none'"),
    ({"bias": "alibi", "bias_grad": True}, "bias_grad=True contradicts bias 'alibi'"),
    ({"bias": "full", "bias_grad": 1}, "bias_grad 1 is no truth value"),
    ({"key_padding": "yes"}, "key_padding 'yes' is no truth value"),
    ({"bias_dtype": "fp16"}, "bias_dtype 'fp16' has nothing to be the type of"),
    ({"bias": "full", "bias_dtype": "fp8"}, "bias_dtype 'fp8' is not known; accepted: fp32"),
    ({"bias": "full", "bias_dtype": "int8"}, "bias_dtype 'int8' is not known"),
    ({"mask_storage": "bool"}, "mask_storage 'bool' contradicts mask 'none'"),
    (
        {"mask": "causal", "mask_storage": "packed"},
        "mask_storage 'packed' is not known; accepted: implicit, bool",
    ),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_input(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        AttentionProblem(**values)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("algorithm", ["flash", "naive"])
@pytest.mark.parametrize(
    "values",
    [
        {"bias": "full", "bias_grad": True, "bias_shared": "heads"},
        {"bias": "alibi", "key_padding": True},
        {"mask_storage": "bool", "dropout": 0.2},
    ],
)
def test_beside_a_list_of_blocks(algorithm: str, values: dict[str, Any]) -> None:
    """A butterfly of blocks: bias tiles are read, and dBias written, where the list has a tile."""
    problem = AttentionProblem(
        batch=2,
        heads=2,
        seq_q=40,
        head_dim=8,
        dtype="fp32",
        mask="butterfly",
        mask_block=8,
        passes="fwd+bwd",
        **values,
    )
    kernel = Kernel(algorithm, algorithm, Tile(8, 8))
    assert disagreements(problem, kernel) == []
    if algorithm == "flash" and problem.bias == "full":
        visits = int(plan(problem, kernel).launches[0].domain.visited.count.sum())
        assert visits < 25
        assert l2(problem, kernel, "bias", "read", "main") == 2 * 2 * visits * 8 * 8 * 4


@pytest.mark.parametrize(
    "values",
    [
        {"bias": "full", "bias_shared": "both", "bias_grad": True, "passes": "fwd+bwd"},
        {"bias": "alibi", "key_padding": True},
        {"dropout": 0.1, "passes": "fwd+bwd", "mask": "causal", "mask_storage": "bool"},
        {"bias": "full", "bias_grad": True, "passes": "bwd", "mask": "causal", "key_padding": True},
    ],
)
@pytest.mark.parametrize("algorithm", ["flash", "naive"])
def test_sweeps_count_them(algorithm: str, values: dict[str, Any]) -> None:
    problem = AttentionProblem(batch=2, heads=8, kv_heads=4, seq_q=1000, head_dim=64, **values)
    kernel = Kernel(algorithm, algorithm, Tile(128, 64))
    lengths = np.array([100, 1000, 4097])
    heads = np.array([[4], [8]])
    read, write, holds = on_arrays(problem, kernel, seq_q=lengths, seq_k=lengths, heads=heads)
    assert holds.any()
    for i, j in zip(*np.nonzero(holds), strict=True):
        n = int(lengths[j])
        h = int(heads[i, 0])
        traffic = count(plan(problem.with_(seq_q=n, seq_k=n, heads=h), kernel))
        assert (traffic.total("l2", "read"), traffic.total("l2", "write")) == (
            read[i, j],
            write[i, j],
        )
    assert derive(problem, kernel).numbers().total("l2") == count(plan(problem, kernel)).total("l2")


def test_bad_input_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["--bias", "half"], "bias 'half'"),
        (["--mask-storage", "bool"], "--mask-storage 'bool' contradicts --mask"),
        (
            ["--kernel", "fa2", "--bias", "full"],
            "--bias full: kernel fa2 does not take it; accepted by: cudnn, cutlass",
        ),
    ):
        refused(capsys, ["predict", *words], message)


def test_a_problem_and_its_dictionary() -> None:
    plain = AttentionProblem(heads=4)
    assert set(plain.to_dict()) == {field.key for field in FIELDS.values() if field.always}
    full = AttentionProblem(
        heads=4,
        mask="causal",
        offset=0,
        bias="full",
        bias_shared="heads",
        bias_dtype="float32",
        bias_grad=True,
        key_padding=True,
        mask_storage="additive",
        passes="bwd",
    )
    assert AttentionProblem.from_dict(full.to_dict()) == full
    assert full.to_dict()["bias_dtype"] == "fp32"
    assert (full.bias_heads, full.bias_batch, full.bias_type.bytes) == (1, 1, 4)
    assert AttentionProblem(dtype="fp8", bias="full").bias_type.name == "bf16"


def test_every_term_alone_changes_only_its_own_rows() -> None:
    """Q, K, V and O move the same bytes whatever is added to the scores, as long as the same tiles are visited."""
    plain = table(count(plan(SMALL, flash())))
    for values in ({"bias": "full"}, {"bias": "alibi"}, {"key_padding": True}, {"dropout": 0.1}):
        by_tensor = table(count(plan(SMALL.with_(**values), flash())))
        assert {k: v for k, v in by_tensor.items() if k in plain} == plain
        assert len(by_tensor) == len(plain) + 1


@pytest.mark.parametrize("gpu", ["h100", "h200"])
@pytest.mark.parametrize("added", [{"bias": "full"}, {"causal": True, "mask_storage": "additive"}])
def test_a_bias_in_shared_memory_is_fetched_score_by_score(gpu: str, added: dict[str, Any]) -> None:
    """PyTorch's memory-efficient kernel stores a tile of 64 x 64 there, 8 KB, and fetches each score by itself, 32 at a
    time in eight wavefronts. Nsight Compute has 175 us of a call with a mask of 4 x 12 x 1,024 x 1,024."""
    call = {"batch": 4, "heads": 12, "seq_len": 1024, "head_dim": 64, "dtype": "bf16"}
    plain, biased = (
        iosim.predict(kernel="cutlass", gpu=gpu, **call, **more) for more in ({}, added)
    )
    main = biased.call.chain.launches[0]
    assert main.score_tensors == 1
    scores = 64 * 64
    more_bytes = scores * 2 + scores // 32 * 8 * 128
    unit = UNITS[MatrixUnit.MMA_SYNC]
    steps = [estimate(p.call.chain.launches[0], unit, scores, 4, 2) for p in (plain, biased)]
    assert steps[1] - steps[0] == more_bytes
    if "bias" in added:
        assert biased.time_s == pytest.approx(175e-6, rel=0.06)
