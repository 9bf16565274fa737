"""Constants fitted to a user's times: found through odd rows, bounded, judged on rows left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from stack_calls import TRUE

import iosim
from iosim.studies.latency.calibration import (
    BOUNDS,
    Calibration,
)
from iosim.studies.latency.fit import NAMES, Timed, fit, held_out_error, read_times


def timed(n: int, constants: Calibration) -> Timed:
    """A made-up call: decoding or prefill, short or long, with what the constants make of it."""
    scale = 10e-6 * 1.5 ** (n % 11)
    attention, hbm_share = ((0.0, scale), 0.9) if n % 2 == 0 else ((scale, 0.0), 0.2)
    sample = Timed(1.0, (1.0, *attention, scale * hbm_share, scale * 0.1 * (n % 3)), 1e-6)
    return replace(sample, measured_s=sample.predicted_s(constants))


def test_twenty_rows_find_the_constants_through_odd_ones() -> None:
    rows = [timed(n, TRUE) for n in range(20)]
    rows[3], rows[10] = (replace(row, measured_s=3 * row.measured_s) for row in (rows[3], rows[10]))
    fitted = fit(rows, Calibration(7e-6))
    assert fitted.call_gap_s == pytest.approx(TRUE.call_gap_s, rel=0.15)
    fresh = [timed(n, TRUE) for n in range(20, 60)]
    assert (
        max(row.error(fitted) for row in fresh)
        < 0.04
        < min(row.error(Calibration(7e-6)) for row in fresh[:1])
    )


def test_constants_stay_within_bounds_and_near_the_prior_where_rows_tell_nothing() -> None:
    rows = [replace(timed(n, TRUE), measured_s=1.0) for n in range(10)]
    assert all(
        BOUNDS[name][0] <= getattr(fit(rows, TRUE), name) <= BOUNDS[name][1] for name in NAMES
    )
    prefill = [timed(n, TRUE) for n in range(1, 41, 2)]
    assert fit(prefill, Calibration(7e-6)).decode_factor == 1.0


def test_the_held_out_error_is_of_rows_that_a_fit_has_not_seen() -> None:
    noisy = [
        replace(timed(n, TRUE), measured_s=timed(n, TRUE).measured_s * (1.2 if n % 5 == 0 else 1))
        for n in range(20)
    ]
    seen = fit(noisy, Calibration(7e-6))
    assert held_out_error(noisy, Calibration(7e-6)) > sum(row.error(seen) for row in noisy) / 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch,heads\n1,2\n", "has no column kv_heads, seq_q, seq_k, head_dim, seconds, ms or us"),
        (
            "batch,heads,kv_heads,seq_q,seq_k,head_dim,ms\n1,2,2,1,9,64,1\n",
            "holds 1 rows; accepted: 8 or more",
        ),
        (
            "batch,heads,kv_heads,seq_q,seq_k,head_dim,ms\n1,2,2,1,x,64,1\n",
            "line 2: seq_k 'x' is no number",
        ),
        (
            "batch,heads,kv_heads,seq_q,seq_k,head_dim,ms\n1,2,2,1,9,64,-1\n",
            "line 2: ms '-1' is out of range",
        ),
        (
            "batch,heads,kv_heads,seq_q,seq_k,head_dim,ms\n1,3,2,1,9,64,1\n",
            "line 2: heads 3 is not a multiple",
        ),
    ],
)
def test_a_bad_file_of_times_is_refused_by_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "times.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(iosim.InputError, match=message):
        read_times(str(path))
