"""Floor 4, the readers of a chain of launches: count, bounds, capacity, timing, formula, execute, replay.

Imports `kernel`, `problem`, `hardware` and `base`. A reader never calls another reader; what one needs of another is
handed over by `prediction`.
"""
