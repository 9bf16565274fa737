"""The mathematics of each algorithm's launches. On-chip values are float64; only what passes memory is rounded."""

from iosim.execute.bodies import flash, flash1, math_path, minimal, naive

__all__ = ["flash", "flash1", "math_path", "minimal", "naive"]
