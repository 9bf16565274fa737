"""Floor 1, what everybody needs: errors, units, files, where shipped data lies.

Imports nothing of iosim. Not for anything that knows attention or a GPU.
"""
