"""Layers that mix tokens without softmax attention: which of them keep a state that is modelled, and the numbers in
the matrices of all of them.

Sizes are those of the classes of transformers, or of the models' own code: Mamba (arXiv 2312.00752), Mamba-2 (arXiv
2405.21060), gated DeltaNet (arXiv 2412.06464), Kimi Delta Attention (arXiv 2510.26692), LFM2's convolutions,
RecurrentGemma's RG-LRU (arXiv 2402.19427), lightning attention (arXiv 2501.08313).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iosim.integrations.models.reading import FAMILIES, Reading, at
from iosim.studies.models.layers import LayerKind

EXPAND = ("mamba_expand", "expand")
CONVOLVED = 4
"""Tokens that Mamba's convolution sees, where no key says it."""
LOW_RANK = 128
"""Columns between the two matrices of KDA's gates, as wide as a head where no key says it."""


def state_of(read: Reading, mixer: str) -> LayerKind | None:
    """A layer that keeps a state, by the keys of its sizes; None where they are not all there, or none is modelled."""
    rows = [
        row
        for row in FAMILIES["states"].get(mixer, ())
        if read.type in row.get("types", (read.type,))
    ]
    # What a file says goes before a class's defaults, under whichever keys it says it.
    for state in sorted(rows, key=lambda row: not _is_written(read, row["keys"])):
        sizes = [_size(read, names) for names in state["keys"]]
        if None not in sizes:
            heads, kv_heads, columns, inner = (size or 0 for size in sizes)
            if heads % kv_heads == 0 and _is_second(read, mixer):
                return LayerKind(
                    mixer, 1, heads, kv_heads, columns, inner, state_kernel=state["kernel"]
                )
    return None


def _is_written(read: Reading, sizes: list[list[str]]) -> bool:
    """True where a file has one of the keys of a state's sizes."""
    return any(at(read.config, name) is not None for names in sizes for name in names)


def _size(read: Reading, names: list[str]) -> int | None:
    """A size of a state; the columns of Mamba's heads follow from its width where no key says them, or "auto"."""
    value = next((read.config[name] for name in names if name in read.config), None)
    if value is not None and value != "auto":
        return read.whole(names, 1 << 16)
    if "mamba_d_head" not in names:
        return read.whole(names, 1 << 16)
    expand, width, heads = (
        read.ratio(*EXPAND),
        read.size("width"),
        read.whole(FAMILIES["states"]["mamba"][0]["keys"][0]),
    )
    if expand and width and heads and round(expand * width) % heads == 0:
        return round(expand * width) // heads
    return read.whole(names, 1 << 16) if value is None else None


def _is_second(read: Reading, mixer: str) -> bool:
    """True where a Mamba layer is Mamba-2: the first has a rank for its time steps (Jamba, Zamba)."""
    return mixer != "mamba" or read.get("mamba_dt_rank") is None


def pure_state(read: Reading) -> LayerKind | None:
    """The state of a model all of whose layers keep one; None for those that are not modelled."""
    if read.type in ("mamba2", "codestral_mamba"):
        state = state_of(read, "mamba2")
        return (
            None
            if state is None
            else LayerKind(
                "mamba",
                1,
                state.heads,
                state.kv_heads,
                state.head_dim,
                state.head_dim_v,
                state_kernel=state.state_kernel,
            )
        )
    if read.type in ("gated_deltanet", "kda"):  # flash-linear-attention's keys
        heads, columns = read.size("heads", 1 << 16), read.whole(("head_dim",), 1 << 16)
        values = read.whole(("num_v_heads",), 1 << 16) or heads
        if heads and columns and values and values % heads == 0:
            default_expand = 2.0 if read.type == "gated_deltanet" else 1.0
            expand = read.ratio("expand_v") or default_expand
            kernel = "gdn" if read.type == "gated_deltanet" else "kda"
            return LayerKind(
                "linear", 1, values, heads, columns, round(columns * expand), state_kernel=kernel
            )
    return None


# --- numbers in their matrices ----------------------------------------------------------------------------------------


def state_numbers(read: Reading, kind: LayerKind, width: int) -> int:
    """Numbers in the matrices of a layer that keeps a state."""
    keys, values = kind.kv_heads * kind.head_dim, kind.heads * kind.head_dim_v
    seen = read.number("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel") or CONVOLVED
    if kind.state_kernel == "ssd":
        convolved = values + 2 * keys
        return width * (2 * values + 2 * keys + kind.heads) + width * values + seen * convolved
    if kind.state_kernel == "gdn":
        return width * (2 * keys + 3 * values + 2 * kind.heads) + seen * (2 * keys + values)
    gates = 2 * width * values
    if read.type != "bailing_hybrid":  # whose gates are no products of two
        low = kind.head_dim or LOW_RANK
        gates = 2 * low * (width + values)
    return width * (2 * keys + 2 * values + kind.heads) + gates + seen * (2 * keys + values)


def _mamba(read: Reading, width: int) -> int | None:
    expand = read.ratio(*EXPAND)
    if expand is None:
        return None
    inner, state = round(expand * width), read.number("mamba_d_state", "state_size") or 16
    rank = read.number("mamba_dt_rank", "time_step_rank") or -(-width // 16)
    copies = read.number("n_mamba_heads") or 1  # Zamba's heads have each a projection of their own
    small = inner * (rank + 2 * state) + rank * inner // copies + inner * (state + CONVOLVED)
    return 3 * width * inner + small


def _conv(read: Reading, width: int) -> int | None:
    return 4 * width * width + (read.number("conv_L_cache") or 3) * width


def _recurrent(read: Reading, width: int) -> int | None:
    wide, heads = read.number("lru_width") or width, read.size("heads") or 1
    return 3 * width * wide + 2 * wide * wide // heads


def _lightning(read: Reading, width: int) -> int | None:
    heads, dim = read.size("heads"), read.size("head_dim")
    inner = (heads or 0) * (dim or width // (heads or 1))
    return 5 * width * inner


OTHERS: Mapping[str, Callable[[Reading, int], int | None]] = {
    "mamba": _mamba,
    "conv": _conv,
    "recurrent": _recurrent,
    "lightning": _lightning,
}
"""Mixers whose layers are not modelled -> numbers in their matrices; None where the config does not say them."""
