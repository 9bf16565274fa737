"""iosim.triton: what iosim does for kernels written in Triton. Triton itself is neither needed nor imported.

print(iosim.triton.remap(ranking.best))         # the lines that turn program_id into that order
print(iosim.triton.remap("head", section_heads=4, heavy_first=True))
"""

from iosim.integrations.triton.remap import remap

__all__ = ["remap"]
