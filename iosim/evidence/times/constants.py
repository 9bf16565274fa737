"""The fitted constants of the time model, counted: where each stands and on which rows it was fitted."""

from __future__ import annotations

from dataclasses import dataclass

from iosim.hardware.profile import load_profile
from iosim.kernel.serving import read_stack, stack_names
from iosim.readers.timing import overlap, step_time

ODD = "odd calls of h200_library_kernels.csv and h200_iosim_kernels.csv"
GRAPH = "odd calls of h200_graph_latency.csv"
FA3 = "FlashAttention-3's forward at 512, 2,048 and 8,192 tokens (published_utilisation.csv)"
POWER = "29 loads of one kind of h200_power.csv"
SERVING = "odd rows of published_latency.csv"
NVIDIA = "odd rows of published_cudnn_benchmark.csv, GB200 and GB300"
MODEL = (
    (step_time, "FP32_OPERATIONS_PER_SCORE", ODD), (step_time, "UNHIDDEN_SPECIALISED", ODD),
    (step_time, "UNHIDDEN_FRAGMENTS", ODD), (overlap, "OVERLAP_NORM", FA3),
    (overlap, "SPLIT_OVERLAP_NORM", GRAPH),
)  # fmt: skip
OF_PROFILES = (
    ("h200-sxm", "tile_cycles", ODD), ("h200-sxm", "step_load_cycles", ODD), ("h200-sxm", "step_sync_cycles", ODD),
    ("h200-sxm", "step_single_buffer_cycles", ODD), ("h200-sxm", "product_step_cycles", ODD),
    ("h200-sxm", "spill_access_cycles", ODD), ("h200-sxm", "launch_latency_s", ODD),
    ("h200-sxm", "pass_bandwidth_fraction", ODD), ("h200-sxm", "add_packet_cycles", ODD),
    ("h200-sxm", "graph_call_latency_s", GRAPH), ("h200-sxm", "graph_launch_latency_s", GRAPH),
    ("h200-sxm", "energy_clock_exponent", POWER), ("h200-sxm", "warp_instruction_pj", POWER),
    ("h200-sxm", "tensor_pj_per_flop", POWER), ("h200-sxm", "mma_sync_pj_per_flop", POWER),
    ("h200-sxm", "shared_pj_per_byte", POWER), ("h200-sxm", "l2_read_pj_per_byte", POWER),
    ("h200-sxm", "l2_write_pj_per_byte", POWER), ("h200-sxm", "hbm_read_pj_per_byte", POWER),
    ("h200-sxm", "hbm_write_pj_per_byte", POWER), ("h100-sxm", "pingpong_tile_cycles", FA3),
    ("b200", "pingpong_tile_cycles", NVIDIA),
)  # fmt: skip


@dataclass(frozen=True)
class Fitted:
    """A fitted constant: its name and value, the GPU in whose profile it stands (none: the model's) and the rows."""

    name: str
    value: float
    gpu: str
    rows: str


def fitted() -> list[Fitted]:
    """All fitted constants with their present values."""
    found = [Fitted(name, float(getattr(module, name)), "", rows) for module, name, rows in MODEL]
    found += [Fitted(name, load_profile(gpu).need(name), gpu, rows) for gpu, name, rows in OF_PROFILES]
    gaps = {name: read_stack(name).call_gap_s for name in stack_names()}
    return found + [Fitted(f"call_gap_s of {name}", gap, "", SERVING) for name, gap in gaps.items() if gap]
