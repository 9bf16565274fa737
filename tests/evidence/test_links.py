"""experiments/links.py: attention over several GPUs is attention, on CPUs; what it recorded on two is as predicted."""

from __future__ import annotations

import statistics
import subprocess
import sys

import pytest
from scripts import ROOT, load_script

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_method_computes_attention(ranks: int) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={ranks}",
        "experiments/links.py",
        "--check",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "compute attention" in done.stdout


@pytest.mark.slow
def test_attention_over_two_gpus_takes_as_long_as_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that nothing was fitted on: 5 % in the mean; one of 1.3 ms, which the processor decides, is 12 % off."""
    links = load_script("benchmarks/links.py")
    monkeypatch.setattr(
        links, "TABLE", ROOT / "experiments" / "measurements" / "h200x2_links_2.csv"
    )
    errors = [abs(row.error) for row in links.attention()]
    assert len(errors) == 7
    assert statistics.fmean(errors) < 0.05
    assert max(errors) < 0.13
