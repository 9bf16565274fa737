"""Sweeps: predictions of a grid, or of every row of a file, as one table in memory or in a CSV or Parquet file.

    >>> from iosim.studies.sweep import sweep
    >>> frame = sweep(gpu=["a100", "h100"], kernel=["fa2", "naive"], seq_len=[1024, 4096], method="capacity")

`cases` are the rows before anything is predicted, `closed` their closed forms, `rows` what is found for them; `run`
shares them among processes and keeps a journal of what is done.
"""

from iosim.studies.sweep.study import sweep

__all__ = ["sweep"]
