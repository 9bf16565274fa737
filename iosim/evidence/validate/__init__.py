"""Validation: predictions beside recorded measurements.

`read` parses a table of measurements, `compare` predicts every row of it, `summarise` sums the errors up. Measured
bytes and times never reach a prediction: `Row.facts` holds what may be used as an input, `Row.measured` what is
compared with.
"""

from __future__ import annotations

from iosim.evidence.validate.residuals import Comparison, Residual, Skipped, compare
from iosim.evidence.validate.rows import Row, default_files, read
from iosim.evidence.validate.summary import Gate, Summary, summarise

__all__ = [
    "Comparison",
    "Gate",
    "Residual",
    "Row",
    "Skipped",
    "Summary",
    "compare",
    "default_files",
    "read",
    "summarise",
]
