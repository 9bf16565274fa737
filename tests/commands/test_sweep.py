"""`iosim sweep`: its first line."""

from __future__ import annotations

import json

import pytest
from refusals import refused

from iosim.commands.cli import main


def test_a_sweep_over_settings_names_the_fastest(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sweep", "--gpu", "a100", "--kernel", "fa2", "--heads", "2", "--seq-len", "1"]
    assert main([*arguments, "--seq-len-k", "8k", "--splits", "1,4", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    first = min(data["rows"], key=lambda row: row["time_s"])
    assert data["answer"].startswith(f"2 predictions; fastest: splits {first['splits']}, ")
    assert main([*arguments, "--seq-len-k", "1k,8k"]) == 0
    assert capsys.readouterr().out.startswith("2 predictions\n")
    refused(capsys, ["predict", "--splits", "1,4"], "--splits 1,4", "iosim sweep takes several")
