"""Models whose config files tests read."""

from __future__ import annotations

from typing import Any

from iosim.integrations.models import load_model


def kind(name: str, layer: str) -> Any:
    return next(layer_kind for layer_kind in load_model(name).kinds if layer_kind.name == layer)


SMALL: dict[str, Any] = {"seq_len": 2048, "gpu": "h100"}
