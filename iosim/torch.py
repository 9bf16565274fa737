"""What PyTorch modules move on a GPU that need not be there.

    >>> from iosim.torch import TrafficMode
    >>> with TrafficMode(gpu="h100") as t:
    ...     model(x).sum().backward()
    >>> print(t.table(depth=2))

Needs PyTorch (`pip install iosim[torch]`), any build of it.
"""

from __future__ import annotations

from iosim.integrations.torch.formulas import Part, Pass, Product, register_traffic_formula
from iosim.integrations.torch.mode import OperatorTraffic, ProgramTraffic, Scratch, TrafficMode

__all__ = [
    "OperatorTraffic",
    "Part",
    "Pass",
    "Product",
    "ProgramTraffic",
    "Scratch",
    "TrafficMode",
    "register_traffic_formula",
]
