"""Closed forms of the counts: sums, SymPy expressions, limits, sweeps over millions of numbers, the papers' bounds."""
