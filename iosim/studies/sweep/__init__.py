"""Sweeps: predictions of a grid, or of every row of a file, as one table in memory or in a CSV or Parquet file.

`cases` are the rows before anything is predicted, `closed` their closed forms, `rows` what is found for them; `run`
shares them among processes and keeps a journal of what is done.
"""
