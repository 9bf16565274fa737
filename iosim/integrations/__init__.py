"""Floor 8, other people's tools: Triton, PyTorch.

Imports `studies` and all below. Each integration imports its tool when it is used.
"""
