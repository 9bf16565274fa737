"""Floor 5, the readers of a chain of launches: formula, staged, bounds, capacity, timing, replay.

Imports `kernel`, `problem`, `hardware` and `base`. A reader never calls another reader; what one needs of another is
handed over by `prediction`.
"""
