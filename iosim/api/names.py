"""The names of `import iosim`, defined where `names.pyi` says; they load on first use, so that the import is light."""

from __future__ import annotations

from typing import Any

with open(f"{__file__.rpartition('.')[0]}.pyi", encoding="utf-8") as _file:
    _WHERE = {line.split()[-1]: line.split()[1] for line in _file if line.startswith("from ")}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        import importlib

        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'iosim' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(_WHERE)
