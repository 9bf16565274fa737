"""`benchmarks/fit_l2.py`: what it takes for the cliff, its and its errors."""

from __future__ import annotations

from types import ModuleType

import pytest
from scripts import load_script

from iosim.hardware.profile import load_profile
from iosim.readers.replay.l2 import L2Model, model

MIB = 1 << 20


@pytest.fixture(scope="module")
def fit_l2() -> ModuleType:
    return load_script("benchmarks/fit_l2.py")


def test_every_scan_is_read_and_the_cliff_is_where_some_hit(fit_l2: ModuleType) -> None:
    rows = fit_l2.scans()
    assert len(rows) == 40  # 20 footprints of two patterns
    for row in rows:
        misses = (row.hbm_read / (row.mib * MIB) - 1) / (row.passes - 1)
        assert row.on_cliff or not 0.02 < misses < 0.98, row


def test_the_error_is_a_share_of_the_re_reads(
    fit_l2: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 10 MiB read 4 times: 30 MiB of re-reads; 16 MiB replayed, 10 measured: a fifth
    monkeypatch.setattr(fit_l2, "scan", lambda l2, footprint, pattern, passes: (16 * MIB, 0))
    held = model(load_profile("h200"))
    assert fit_l2.error(held, fit_l2.Scan("shared_scan", 10, 4, 10 * MIB)) == pytest.approx(0.2)
    # on the cliff only: (16 - 30) / 90 and (16 - 40) / 120; the first row is left out
    rows = [
        fit_l2.Scan(*row)
        for row in (
            ("shared_scan", 10, 4, 10 * MIB),
            ("shared_scan", 30, 4, 30 * MIB),
            ("private_scan", 40, 4, 40 * MIB),
        )
    ]
    assert fit_l2.cliff_error(held, rows) == pytest.approx((14 / 90 + 24 / 120) / 2)


def test_the_grid_plays_its_own_constants(
    fit_l2: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[L2Model] = []

    def error(l2: L2Model, rows: object) -> float:
        seen.append(l2)
        return 0.015 * l2.ways

    monkeypatch.setattr(fit_l2, "cliff_error", error)
    profile = load_profile("h200")
    fit_l2.print_grid(profile, [])
    assert len(seen) == len(fit_l2.WAYS) * len(fit_l2.CAPACITY) + 1
    assert seen[-1] == model(profile)
    for ways, capacity in ((16, 0.96), (24, 1.04)):
        sets = int(62_914_560 * capacity) // 2 // (ways * 128)
        assert any((model.ways, model.sets) == (ways, sets) for model in seen)
    # 0.015 times 12, 16, 20 and 24, in percent
    assert "| 0.96 | 18.00 | 24.00 | 30.00 | 36.00 |" in capsys.readouterr().out
