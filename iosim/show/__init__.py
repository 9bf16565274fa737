"""Floor 2, how results are shown: tables, figures, pages and the words they share.

Imports `base`. Not for results themselves: it renders data that others hand over, and computes none.
"""
