"""Floor 8, what the hardware and others say: build and launch CUDA kernels, measure, validate, reproduce.

Imports `studies` and all below. Measured bytes and times never reach a prediction.
"""
