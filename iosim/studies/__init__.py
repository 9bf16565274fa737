"""Floor 7, loops over the verb: tiles, orders, explain, compare, report, trace, decode, latency, models, program,
sweep, distributed, training.

Imports `prediction`, `show` and all below. Not for option spellings (`commands`) nor for measuring (`evidence`).
"""
