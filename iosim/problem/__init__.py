"""Floor 2, what is computed: `AttentionProblem`, its types and masks.

Imports `base`. Not for how it is computed (`kernel`) nor on what (`hardware`).
"""
