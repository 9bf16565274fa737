"""Floor 2, on what it is computed: hardware profiles, and what fits on an SM.

Imports `base`. Not for problems or kernels: a profile knows none.
"""
