"""The mathematics of each algorithm's launches. On-chip values are float64; only what passes memory is rounded."""

from iosim.readers.execute.bodies import cache, flash, flash1, fp8, math_path, minimal, mla, naive, uniform

__all__ = ["cache", "flash", "flash1", "fp8", "math_path", "minimal", "mla", "naive", "uniform"]
