"""Parts of TrafficMode by themselves: versions, extents of products, masks of blocks, what is shown at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import noop_mask  # noqa: E402

from iosim.base.errors import InputError  # noqa: E402
from iosim.hardware.profile import load_profile  # noqa: E402
from iosim.integrations.torch import attention  # noqa: E402
from iosim.integrations.torch.formulas import REGISTRY, _packet  # noqa: E402
from iosim.integrations.torch.recorder import Recorder  # noqa: E402
from iosim.problem.masks.blocks import BlockMask  # noqa: E402
from iosim.torch import Pass, Product, TrafficMode, register_traffic_formula  # noqa: E402

aten = torch.ops.aten


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


@pytest.mark.parametrize(
    ("version", "cudnn"),
    [
        ("2.8.0", 91002),  # older than all that are listed: as the first
        ("2.9.0", 91002),
        ("2.10.1+cu128", 91002),
        ("2.11.0", 91900),
        ("2.12.0", 92000),
        ("2.13.0", 92000),  # as the last that is listed
        ("3.0.0", 92000),
    ],
)
def test_cudnn_of_wheels(version: str, cudnn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "__version__", version)
    assert attention.default_cudnn() == cudnn


def test_cudnn_that_is_there_goes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.9.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for installed, cudnn in ((91500, 91500), (None, 91002)):
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda n=installed: n)
        assert attention.default_cudnn() == cudnn


@pytest.mark.parametrize(
    ("a", "b", "extent"),
    [
        ((24, 16), (16, 40), (1, 24, 40, 16)),
        ((16,), (16, 40), (1, 1, 40, 16)),  # a vector is one row
        ((24, 16), (16,), (1, 24, 1, 16)),  # or one column
        ((16,), (16,), (1, 1, 1, 16)),
        ((3, 24, 16), (16, 40), (3, 24, 40, 16)),  # batches of either
        ((24, 16), (5, 16, 40), (5, 24, 40, 16)),
        ((3, 2, 24, 16), (3, 2, 16, 40), (6, 24, 40, 16)),
    ],
)
def test_extents_of_products(a: tuple[int, ...], b: tuple[int, ...], extent: Any) -> None:
    product = Product(meta(*a), meta(*b), meta(1))
    assert product.extent == extent
    assert product.flops == 2 * np.prod(extent)


def test_what_a_formula_may_be_registered_for() -> None:
    assert _packet(aten.mm) is _packet(aten.mm.default) is aten.mm

    @torch.library.custom_op("iosim_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    doubled.register_fake(torch.empty_like)
    assert _packet(doubled) is torch.ops.iosim_tests.doubled

    @register_traffic_formula(doubled)
    def formula(x: torch.Tensor, *, out: torch.Tensor) -> list[Any]:
        return [Pass([x], [out], "doubles")]

    assert REGISTRY[torch.ops.iosim_tests.doubled] is formula
    with TrafficMode("h200") as mode:
        doubled(meta(4, 4))
    assert [row.operator for row in mode.result.rows] == ["iosim_tests::doubled.doubles"]
    for other in (len, "mm", torch.mm):
        with pytest.raises(InputError, match="is no operator of PyTorch"):
            _packet(other)


def blocks(
    counts: Any, places: Any, full_counts: Any = None, full_places: Any = None, **named: Any
) -> Any:
    """A mask of 2 x 3 blocks of 4 x 2 elements, as FlexAttention's operator takes it."""
    sides, function = named.get("sides", (4, 2)), named.get("function")
    return 8, 6, counts, places, full_counts, full_places, None, None, None, None, *sides, function


def lists(*rows: list[int]) -> torch.Tensor:
    return torch.tensor([[list(rows)]])


COUNTS, PLACES = torch.tensor([[[1, 2]]]), lists([2, 0, 0], [0, 1, 0])
FULL_COUNTS, FULL_PLACES = torch.tensor([[[0, 1]]]), lists([0, 0, 0], [2, 0, 0])
EVERY = attention.NO_MASK_BLOCK


def diagonal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q // 4 == k // 2


@pytest.mark.parametrize(
    ("mask", "pairs"),
    [
        # Row 0 lists block 2, row 1 blocks 0 and 1; of full ones row 1 lists block 2.
        (blocks(COUNTS, PLACES), [(0, 2), (1, 0), (1, 1)]),
        (blocks(COUNTS, PLACES, FULL_COUNTS, FULL_PLACES), [(0, 2), (1, 0), (1, 1), (1, 2)]),
        # What the lists hold goes before the function; where they hold nothing, the function is asked.
        (blocks(COUNTS, PLACES, function=diagonal), [(0, 2), (1, 0), (1, 1)]),
        (blocks(COUNTS.to("meta"), PLACES, function=diagonal), [(0, 0), (1, 1)]),
        (blocks(COUNTS, PLACES.to("meta"), function=diagonal), [(0, 0), (1, 1)]),
        (
            blocks(COUNTS.to("meta"), PLACES, FULL_COUNTS, FULL_PLACES, function=noop_mask),
            [(row, col) for row in range(2) for col in range(3)],
        ),
        # A block as long as all queries, and one as wide as all keys.
        (blocks(lists([1])[0], lists([[2]])[0], sides=(EVERY, 2)), [(0, 2)]),
    ],
)
def test_blocks_of_a_mask(mask: Any, pairs: list[tuple[int, int]]) -> None:
    rows, cols = (np.asarray(places, dtype=np.int64) for places in zip(*pairs, strict=True))
    recorder = Recorder(load_profile("h200"))
    assert attention.block_mask_of(recorder, mask, 8, 6) == BlockMask.of_pairs(
        8, 6, mask[-3], mask[-2], rows, cols
    )


def test_a_mask_of_one_block_keeps_all() -> None:
    mask = blocks(COUNTS, PLACES, sides=(EVERY, EVERY))
    assert attention.block_mask_of(Recorder(load_profile("h200")), mask, 8, 6) is None


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        (blocks(COUNTS.expand(2, 1, 2), PLACES), "2 sequences and 1 heads"),
        (blocks(COUNTS.expand(1, 2, 2), PLACES), "1 sequences and 2 heads"),
        (blocks(COUNTS.to("meta"), PLACES), "a BlockMask of CPU tensors"),
        (blocks(COUNTS.to("meta"), PLACES, function=noop_mask), "a BlockMask of CPU tensors"),
    ],
)
def test_masks_that_are_refused(mask: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        attention.block_mask_of(Recorder(load_profile("h200")), mask, 8, 6)


@pytest.mark.parametrize("display", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_what_is_shown_at_the_end(
    display: bool, fails: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result, where it is wished for and the program did not fail."""
    try:
        with TrafficMode("h200", display=display):
            meta(4, 4).add(1)
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert bool(capsys.readouterr().out) == (display and not fails)


def test_nothing_is_recorded_after_the_end() -> None:
    """A backward that runs when its mode has ended, of attention and of products."""
    q = torch.empty(1, 2, 64, 64, device="meta", dtype=torch.bfloat16, requires_grad=True)
    with TrafficMode("h200", cudnn="9.19.0") as mode:
        scores = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        normed = torch.nn.functional.rms_norm(scores, (64,))
    operators = list(mode._recorder.program.operators)
    assert [operator.name for operator in operators] == ["attention", "_fused_rms_norm"]
    normed.backward(torch.empty_like(normed))
    assert list(mode._recorder.program.operators) == operators


def test_attributes_of_a_result_explain_themselves() -> None:
    for name in ("hbm", "l2", "time_s", "table"):
        assert getattr(TrafficMode, name).__doc__
