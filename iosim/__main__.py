"""`iosim` and `python -m iosim`: the command line as a process of its own."""

import gc
import os
import sys

from iosim.commands.cli import ended_in_order, main


def script() -> int:
    """Run a command; returns the exit code. What it leaves ends with the process: no circles are looked for in it."""
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # no matrices here: NumPy's threads would wait, busily, for some
    with ended_in_order():
        code = main()
    gc.freeze()
    return code


if __name__ == "__main__":
    sys.exit(script())
