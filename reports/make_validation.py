"""Writes validation.html and validation.md beside this file: `python reports/make_validation.py`. About a minute.

The same code and the same recorded rows give the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from iosim.commands.cli import main

if __name__ == "__main__":
    sys.exit(main(["validate", "--report", str(Path(__file__).resolve().parent)]))
