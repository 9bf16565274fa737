"""Operators one after the other through one L2: what a whole module moves, operator by operator.

An operator is a chain of launches with its tensors bound to places in memory. Nothing here knows PyTorch: whoever
records a program (`iosim.integrations.torch`) says which storages there are, when they come and go, and what runs.
"""
