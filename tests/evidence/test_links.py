"""experiments/links.py: attention over several GPUs is attention, on CPUs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from scripts import ROOT

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
