"""Columns of the tables about the Hopper kernels: of the problem, of the forward's knobs, of its order."""

PROBLEM = (
    "implementation",
    "batch",
    "heads",
    "kv_heads",
    "seq_q",
    "seq_k",
    "head_dim",
    "causal",
    "dtype",
)
KNOBS = (
    "consumers",
    "block_k",
    "stages",
    "q_stages",
    "schedule",
    "cluster",
    "pipeline",
    "turns",
    "poly",
)
ORDER = ("order", "blocks", "section_heads", "direction")
