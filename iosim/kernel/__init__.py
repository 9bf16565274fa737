"""Floor 3, how it is computed: `Kernel`, its launches, schedule and chain; the algorithms; the libraries' rule books.

Imports `problem`, `hardware` and `base`. Not for counting bytes or seconds: that is what readers do.
"""
