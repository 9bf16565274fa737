"""The forward that is compiled for its reports is attention: run in NumPy, against softmax as it is written down."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
from triton_in_numpy import Pointers, run, triton_in_numpy

MODULE = "iosim.integrations.triton.forward"
BATCH, HEADS, TOKENS, WIDTH = 2, 3, 64, 8


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("rows", "keys"), [(16, 16), (16, 32), (32, 16)])
def test_its_output_is_softmax(is_causal: bool, rows: int, keys: int) -> None:
    draw = np.random.default_rng(0)
    shape = (BATCH, HEADS, TOKENS, WIDTH)
    q, k, v = (draw.normal(size=shape) for _ in range(3))
    scale = 2.0  # so that a row's largest score is far above 1
    out, sums = np.zeros(shape), np.zeros(shape[:3])
    with triton_in_numpy() as program:
        sys.modules.pop(MODULE, None)
        forward = importlib.import_module(MODULE)
        sys.modules.pop(MODULE, None)
        pointers = [Pointers(tensor) for tensor in (q, k, v, out)]
        stage = 3 if is_causal else 1
        run(
            forward.flash_forward,
            program,
            (TOKENS // rows, BATCH * HEADS),
            *(scale, Pointers(sums), BATCH, HEADS, *pointers, TOKENS, WIDTH, rows, keys, stage),
        )
    scores = scale * q @ k.swapaxes(-1, -2)
    if is_causal:
        scores = np.where(np.tri(TOKENS, dtype=bool), scores, -np.inf)
    weights = np.exp(scores)
    total = weights.sum(axis=-1)
    np.testing.assert_allclose(out, weights / total[..., None] @ v, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(sums, np.log2(total), rtol=1e-6, atol=1e-9)
