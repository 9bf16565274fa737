"""Where the names of `import iosim` are defined. They load on first use, so that the import stays light."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_WHERE = {
    "AttentionProblem": "iosim.problem.attention",
    "HardwareProfile": "iosim.hardware.profile",
    "InputError": "iosim.base.errors",
    "Kernel": "iosim.kernel.kernel",
    "LoopAlgorithm": "iosim.kernel.algorithms.one_loop",
    "Overrides": "iosim.kernel.libraries",
    "Prediction": "iosim.prediction.result",
    "Tile": "iosim.kernel.kernel",
    "check_claim": "iosim.api.calls",
    "compare": "iosim.api.calls",
    "decode": "iosim.api.models",
    "explain": "iosim.api.calls",
    "formula": "iosim.api.models",
    "latency": "iosim.api.models",
    "list_profiles": "iosim.hardware.profile",
    "load_profile": "iosim.hardware.profile",
    "orders": "iosim.api.calls",
    "pick_tiles": "iosim.api.calls",
    "predict": "iosim.api.calls",
    "resolve": "iosim.kernel.libraries",
    "ring": "iosim.api.models",
    "study_tile": "iosim.api.calls",
    "sweep": "iosim.api.models",
    "train_memory": "iosim.api.models",
}

if TYPE_CHECKING:
    from iosim.api.calls import check_claim as check_claim
    from iosim.api.calls import compare as compare
    from iosim.api.calls import explain as explain
    from iosim.api.calls import orders as orders
    from iosim.api.calls import pick_tiles as pick_tiles
    from iosim.api.calls import predict as predict
    from iosim.api.calls import study_tile as study_tile
    from iosim.api.models import decode as decode
    from iosim.api.models import formula as formula
    from iosim.api.models import latency as latency
    from iosim.api.models import ring as ring
    from iosim.api.models import sweep as sweep
    from iosim.api.models import train_memory as train_memory
    from iosim.base.errors import InputError as InputError
    from iosim.hardware.profile import HardwareProfile as HardwareProfile
    from iosim.hardware.profile import list_profiles as list_profiles
    from iosim.hardware.profile import load_profile as load_profile
    from iosim.kernel.algorithms.one_loop import LoopAlgorithm as LoopAlgorithm
    from iosim.kernel.kernel import Kernel as Kernel
    from iosim.kernel.kernel import Tile as Tile
    from iosim.kernel.libraries import Overrides as Overrides
    from iosim.kernel.libraries import resolve as resolve
    from iosim.prediction.result import Prediction as Prediction
    from iosim.problem.attention import AttentionProblem as AttentionProblem

else:
    __all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        import importlib

        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'iosim' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(_WHERE)
