"""Floor 3, how it is computed: `Kernel`, its launches with their work, schedule and chain; the units that compute.

Imports `problem`, `hardware` and `base`. Not for counting bytes or seconds: that is what readers do.
"""
