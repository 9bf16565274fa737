"""Published kernels beside their counters: which are read, and what is said of those that are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripts import load_script


@pytest.fixture(scope="module")
def strangers() -> Any:
    return load_script("benchmarks/strangers.py")


def test_every_counted_kernel_is_read_or_has_a_reason(strangers: Any) -> None:
    counted = [name for gpu in strangers.GPUS for name in strangers.counted(gpu)]
    families = {strangers.Case(name).family for name in counted}
    assert families == {*strangers.FAMILIES, *strangers.NOT_HAD}


def test_without_a_checkout_a_row_is_left_out_by_name(
    strangers: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(strangers.rows(["h200"], "minimal", tmp_path, tmp_path)) == []
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all("left out (tspeterkim/flash-attention-minimal: no " in line for line in said)


def test_lists_of_blocks_have_those_in_part_and_those_in_whole(strangers: Any) -> None:
    counts, order, full_counts, full_order = strangers.block_lists(256, lambda m, n: m >= n)
    assert counts == "KV_NUM_BLKS=VALUES(int32,1,1)"  # the diagonal, of each of two blocks
    assert order == "KV_IDX=VALUES(int32,0,1,1,0)"
    assert full_counts == "FULL_KV_NUM_BLKS=VALUES(int32,0,1)"
    assert full_order == "FULL_KV_IDX=VALUES(int32,0,1,0,1)"


def test_a_number_that_is_none_of_a_cases_is_asked_for(strangers: Any) -> None:
    case = strangers.Case("flex-softcap|b1|h16|k4|n4096|d128")
    assert (case.number("k"), case.number("m", 7)) == (4, 7)
    with pytest.raises(strangers.InputError, match="names no m"):
        case.number("m")
