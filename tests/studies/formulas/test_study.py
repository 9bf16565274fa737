"""Which symbols of a formula have a number, by what was asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iosim.studies.formulas.study import _given, _problem
from iosim.studies.requests import FORMULA

VALUES = {
    "batch": 2,
    "heads": 8,
    "kv_heads": 8,
    "seq": 64,
    "seq_q": 64,
    "seq_k": 64,
    "element_bytes": 2,
    "block_q": 128,
    "block_k": 64,
}


@pytest.mark.parametrize(
    ("options", "tile", "names"),
    [
        ({}, False, ""),
        ({"batch": 2}, False, "batch"),
        ({"heads": 8}, False, "heads kv_heads"),
        ({"seq_q": 64}, False, "seq seq_q seq_k"),  # query tokens alone mean as many keys
        ({"seq_q": 64, "seq_k": 64}, False, "seq seq_q seq_k"),
        ({"seq_k": 64}, False, "seq_k"),
        ({"dtype": "fp16"}, False, "element_bytes"),
        ({}, True, "block_q block_k"),
        ({"seq_q": 64}, True, "seq seq_q seq_k block_q block_k"),
    ],
)
def test_what_was_asked_for_has_a_number(options: dict[str, Any], tile: bool, names: str) -> None:
    numbers = _given(options, SimpleNamespace(values=VALUES), tile)  # type: ignore[arg-type]
    assert numbers == {name: VALUES[name] for name in names.split()}


@pytest.mark.parametrize(
    ("name", "heads", "kv_heads", "widths"),
    [
        ("flash", 32, 32, (128, 128)),
        ("mla", 128, 1, (512 + 64, 512)),  # DeepSeek-V3's latent and its rotary part
    ],
)
def test_sizes_that_stand_for_those_of_nobody(
    name: str, heads: int, kv_heads: int, widths: tuple[int, int]
) -> None:
    nothing = {field: about.default for field, about in FORMULA.items()}
    problem = _problem({"name": name} | nothing)
    assert (problem.heads, problem.kv_heads) == (heads, kv_heads)
    assert (problem.head_dim, problem.head_dim_v) == widths
