"""Every fitted number of the package: where it stands, its present value and the rows on which it was fitted.

A number is fitted where it was chosen so that predictions agree with measurements. Those of a user's own calibration
are not here. tests/evidence/test_fitted.py finds fitted numbers that are missing.
"""

from __future__ import annotations

from types import ModuleType

from iosim.base.records import dataclass
from iosim.hardware.profile import load_profile
from iosim.kernel.algorithms import efficient, flash
from iosim.kernel.libraries.loader import entry
from iosim.kernel.serving import read_stack, stack_names
from iosim.readers.replay import l2
from iosim.readers.timing import overlap, rates, step_time

LIBRARIES = "odd calls of h200_library_kernels.csv"
OWN = "odd calls of h200_iosim_kernels.csv"
ODD = f"{LIBRARIES} and h200_iosim_kernels.csv"
GRAPH = "odd rows of h200_graph_latency.csv"
FA3 = "FlashAttention-3's forward at 512, 2,048 and 8,192 tokens (published_utilisation.csv)"
COMBINES = "FlashAttention-2's combines in "
ORDERS = "odd rows of h200_sm90_orders_bytes.csv"
SETS = "sets that 12 to 17 pages in a row overfill (h200_l2_sets.npz)"
SERVING = "odd rows of published_latency.csv"
NVIDIA = "odd rows of published_cudnn_benchmark.csv, GB200 and GB300"
BUILDS = "h100_library_builds.csv"
SUMS = "three calls of h100_random.csv"
STALLS = "FlashAttention-2 with a mask, and the memory-efficient backward (h100_stalls.csv)"
CURVES = "the GPU's curves in published_l2_curves.csv"
MODULES: tuple[tuple[ModuleType, str, str], ...] = (
    (step_time, "FP32_OPERATIONS_PER_SCORE", ODD), (step_time, "UNHIDDEN_SPECIALISED", ODD),
    (step_time, "UNHIDDEN_FRAGMENTS", ODD), (step_time, "LOCKED_LOADS", STALLS),
    (step_time, "CODE_BYTES_PER_CYCLE", STALLS), (flash, "RAGGED_CODE", STALLS),
    (overlap, "OVERLAP_NORM", FA3), (overlap, "SPLIT_OVERLAP_NORM", GRAPH),
    (rates, "DRAM_LOAD_CYCLES", f"{COMBINES}h200_decode.csv"), (rates, "L2_LOAD_CYCLES", f"{COMBINES}{GRAPH}"),
    (flash, "NARROW_STORES", BUILDS), (flash, "NARROW_GRADIENTS", BUILDS), (efficient, "LOCK_READ", BUILDS),
    (efficient, "LOCK_WRITE", BUILDS),
    (efficient, "LOCK_WRITE_PER_WARP", BUILDS),
    (l2, "SHUFFLED_PAGES", SETS), (l2, "RUN_PAGES", SETS),
)  # fmt: skip
"""Constants of modules."""
ENERGIES = (
    "energy_clock_exponent", "warp_instruction_pj", "tensor_pj_per_flop", "mma_sync_pj_per_flop", "shared_pj_per_byte",
    "l2_read_pj_per_byte", "l2_write_pj_per_byte", "hbm_read_pj_per_byte", "hbm_write_pj_per_byte",
)  # fmt: skip
WAYS_AND_CAPACITY = ("l2_ways", "l2_effective_capacity_fraction")
PROFILES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("h200-sxm", ODD, ("tile_cycles", "step_load_cycles", "step_sync_cycles", "step_single_buffer_cycles",
                       "product_step_cycles", "launch_latency_s")),
    ("h200-sxm", LIBRARIES, ("spill_access_cycles", "pass_bandwidth_fraction")),
    ("h200-sxm", OWN, ("add_packet_cycles",)),
    ("h200-sxm", GRAPH, ("graph_call_latency_s",)),
    ("h200-sxm", "loads of one kind in h200_power.csv", ENERGIES),
    ("h100-sxm", "odd rows of h100_graph_latency.csv", ("graph_call_latency_s",)),
    ("h100-sxm", "loads of one kind in h100_power.csv", ENERGIES),
    ("h100-sxm", FA3, ("pingpong_tile_cycles",)),
    *((gpu, NVIDIA, ("pingpong_tile_cycles",)) for gpu in ("b200", "b300", "gb200")),
    *((gpu, CURVES, WAYS_AND_CAPACITY) for gpu in ("a100-sxm-80gb", "l40", "rtx-4090", "v100-sxm2")),
    ("a40", CURVES, (*WAYS_AND_CAPACITY, "l2_dirty_fraction")),
)  # fmt: skip
"""GPUs, rows and the values of their profiles that were fitted on them; those of a compute capability stand with each
of its GPUs."""
CATALOG = (
    ("cudnn", "sm_spread", LIBRARIES), ("flash-sm90", "sm_spread", ORDERS), ("flash-sm90", "hbm_share", ORDERS),
    ("fa2", "copy0.operations", LIBRARIES), ("fa2", "sum_dK.operations", SUMS),
    ("fa2", "sum_dK.operations_of_group", SUMS),
)  # fmt: skip
"""Values of the catalog: of a kernel, or of one of its passes around the backward."""


@dataclass(frozen=True)
class Fitted:
    """A fitted number: its name and value, the GPU in whose profile it stands (none: the model's, a catalog entry's or
    a stack's) and the rows."""

    name: str
    value: float
    gpu: str
    rows: str


def fitted() -> list[Fitted]:
    """All fitted numbers with their present values."""
    found = [Fitted(name, float(getattr(module, name)), "", rows) for module, name, rows in MODULES]
    found += [Fitted(n, load_profile(gpu).need(n), gpu, rows) for gpu, rows, names in PROFILES for n in names]
    found += [Fitted(f"{key} of {name}", _stated(name, key), "", rows) for name, key, rows in CATALOG]
    gaps = {name: read_stack(name).call_gap_s for name in stack_names()}
    return found + [Fitted(f"call_gap_s of {name}", gap, "", SERVING) for name, gap in gaps.items() if gap]


def _stated(kernel: str, key: str) -> float:
    """A value of a catalog file."""
    of_pass, _, name = key.rpartition(".")
    rows = {row["name"]: row for row in entry(kernel).get("backward_pass", ())}
    return float((rows[of_pass] if of_pass else entry(kernel)["kernel"])[name])
