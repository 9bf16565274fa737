"""iosim.triton: what iosim does for kernels written in Triton. Triton is imported only where it compiles something.

model = iosim.triton.TritonModel("h100")        # triton.autotune(..., prune_configs_by=model.prune_configs_by(4))
iosim.triton.describe(compiled, grid, args)     # a compiled kernel as a Kernel, to predict
iosim.triton.launch_metadata("h100")            # predicted bytes and FLOPs for Proton, Triton's profiler
print(iosim.triton.remap(ranking.best))         # the lines that turn program_id into that order
print(iosim.triton.remap("head", section_heads=4, heavy_first=True))
"""

from iosim.integrations.triton.compiled import describe
from iosim.integrations.triton.model import TritonModel, launch_metadata
from iosim.integrations.triton.remap import remap

__all__ = ["TritonModel", "describe", "launch_metadata", "remap"]
