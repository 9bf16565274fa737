"""Floor 2, how results are shown: tables, figures and pages, as text, Markdown, CSV and HTML.

Imports `base`. Not for results themselves: it renders data that others hand over, and computes none.
"""
