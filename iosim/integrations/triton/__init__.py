"""Triton kernels as iosim sees them, tiles for them, and the model that `triton.autotune` may ask."""
