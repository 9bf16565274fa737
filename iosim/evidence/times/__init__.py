"""Predicted times beside recorded ones: whose rows they are, how far apart, and what each mechanism is worth.

`groups.GROUPS` names every group of rows with its table, its target and what was fitted on it; nothing else knows them.
"""
