"""Counted launches of flash_fwd_sm90 and of library kernels at odd widths, beside predictions."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import ROOT

from iosim.base.errors import InputError
from iosim.evidence.validate import Row, compare, read
from iosim.evidence.validate.match import match
from iosim.hardware.profile import load_profile
from iosim.prediction.call import Call

PROFILE = load_profile("h200")
FOLDER = ROOT / "experiments" / "measurements"
TABLE = FOLDER / "h200_sm90_orders_bytes.csv"
EXACT, EXACT_BYTES = 0.001, 1024


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return read(TABLE)


def counted(row: Row) -> dict[str, int]:
    """Bytes between SMs and L2 of a row's launch."""
    case = match([row], PROFILE)
    (chain,) = case.chains
    total = Call.of(case.problem, case.kernel, PROFILE, chain).counted.total
    return {f"l2_{direction}": int(total("l2", direction)) for direction in ("read", "write")}


def is_exact(predicted: int, measured: float) -> bool:
    return abs(predicted - measured) <= max(EXACT * measured, EXACT_BYTES)


def test_bytes_between_sms_and_l2_of_every_launch(rows: list[Row]) -> None:
    assert len(rows) == 385
    missed = [
        (row.call, name)
        for row in rows
        for name, value in counted(row).items()
        if not is_exact(value, row.measured[name])
    ]
    assert not missed


def test_clusters_count_all_keys_of_every_cta(rows: list[Row]) -> None:
    """As they arrive; the slices of the L2 see each once a cluster."""
    of_two = [row for row in rows if row.facts["cluster"] == "2"]
    assert of_two
    for row in of_two[:4]:
        assert is_exact(counted(row)["l2_read"], row.measured["l2_read"])


def test_a_row_without_call_and_launch_is_a_call_of_one_launch(rows: list[Row]) -> None:
    assert [(row.call, row.launch) for row in rows[:3]] == [(1, 1), (2, 1), (3, 1)]


def test_knobs_that_do_not_exist_are_told(rows: list[Row], tmp_path: Path) -> None:
    header, first = TABLE.read_text().splitlines()[:2]
    table = tmp_path / "rows.csv"
    table.write_text(f"{header}\n{first.replace('light_first', 'middle_first')}\n")
    (skipped,) = compare(read(table), PROFILE).skipped
    assert "middle_first" in skipped.reason
    table.write_text(f"{header}\n{first.replace(',bf16,2,', ',bf16,two,')}\n")
    with pytest.raises(InputError, match="consumers 'two'"):
        read(table)


def test_cudnn_fetches_the_columns_that_it_is_compiled_for() -> None:
    rows = [
        row for row in read(FOLDER / "h200_library_kernels_2.csv") if row.implementation == "cudnn"
    ]
    narrow = [row for row in rows if row.number("head_dim") == 96]
    assert len(narrow) == 2
    for row in narrow:
        assert all(is_exact(value, row.measured[name]) for name, value in counted(row).items())


def read_errors(rows: list[Row]) -> list[float]:
    """Of bytes from HBM."""
    comparison = compare(rows, PROFILE)
    assert not comparison.skipped
    return sorted(
        r.error for r in comparison.residuals if r.quantity == "hbm_read" and r.error is not None
    )


def test_reads_of_a_sample(rows: list[Row]) -> None:
    """One order each without thrashing, and heads side by side with the light blocks first."""
    chosen = [row for row in rows if row.call in (111, 113, 126, 128, 134, 135, 139)]
    assert max(read_errors(chosen)) < 0.14


def test_heads_as_large_as_a_partition_whose_tiles_are_claimed_ahead(rows: list[Row]) -> None:
    """Which CTA gets which second tile decides where in a head the CTAs stand: dealt out in order, 70 % too low."""
    (error,) = read_errors([row for row in rows if row.call == 326])
    assert error < 0.2


def test_who_misses_waits_longer_than_a_stream_would(rows: list[Row]) -> None:
    """Tiles here and there come slower than a stream, so that more CTAs gather behind the one that misses."""
    (row,) = (row for row in rows if row.call == 338)
    case = match([row], PROFILE)
    (chain,) = case.chains
    slow, fast = (
        Call.of(case.problem, case.kernel.with_(hbm_share=share), PROFILE, chain).replay()
        for share in (case.kernel.hbm_share, 1.0)
    )
    assert slow.seconds > fast.seconds
    assert (
        row.measured["hbm_read"]
        < slow.traffic.total("hbm", "read")
        < 0.95 * fast.traffic.total("hbm", "read")
    )


@pytest.mark.slow
def test_reads_of_every_launch(rows: list[Row]) -> None:
    """What docs/validation.md says of them."""
    errors = read_errors([row for row in rows if row.call % 2 == 0])
    assert errors[len(errors) // 2] < 0.015
    assert sum(e < 0.1 for e in errors) > 0.86 * len(errors)
