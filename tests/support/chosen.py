"""What the catalog chooses for a problem."""

from __future__ import annotations

from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel
from iosim.problem.attention import AttentionProblem


def chosen(name: str, gpu: str, **problem: object) -> Kernel:
    shape: dict[str, object] = {"batch": 4, "heads": 32, "seq_q": 4096, "dtype": "bf16"}
    return resolve(name, AttentionProblem(**(shape | problem)), load_profile(gpu))  # type: ignore[arg-type]
