"""Floor 4, which kernels there are: algorithms that plan launches, the libraries' tiles and rule books, serving stacks.

Imports `kernel`, `problem`, `hardware` and `base`. A kernel's numbers are data (TOML); what a library decides at launch
is its rule book. Not for counting bytes or seconds: that is what readers do.
"""
