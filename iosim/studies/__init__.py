"""Floor 6, loops over the verb: tiles, explain, compare, report, trace, decode, distributed, training.

Imports `prediction`, `show` and all below. Not for option spellings (`commands`) nor for measuring (`evidence`).
"""
