"""In how many bytes a model's numbers are held: by its type, and by what packed its weights.

A quantisation says which modules it left alone; those whose patterns name attention or dense MLPs keep the type of the
others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iosim.base.schema import one_line
from iosim.integrations.models.reading import Reading, at

BYTES = {"float32": 4.0, "fp32": 4.0}
METHODS = {
    "fp8": 1.0, "fbgemm_fp8": 1.0, "mxfp4": 17 / 32, "mxfp8": 33 / 32, "bitnet": 0.25, "nvfp4": 9 / 16, "higgs": 0.52,
}  # fmt: skip
"""What packed the weights -> bytes of a number, with the scales: of MXFP4 one for every 32, of NVFP4 for every 16."""
ALGORITHMS = {"FP8": 1.0, "FP8_PER_CHANNEL_PER_TOKEN": 1.0, "FP8_PB_WO": 1.0, "NVFP4": 9 / 16, "NVFP4_AWQ": 9 / 16,
              "W4A16_NVFP4": 9 / 16, "W4A8_NVFP4_FP8": 9 / 16, "W4A16_AWQ": 0.5 + 2.5 / 128, "W4A8_AWQ": 0.5 + 2 / 128,
              "W8A16": 1.0, "W8A8_SQ_PER_CHANNEL": 1.0, "INT4_AWQ": 0.5 + 2.5 / 128, "MXFP8": 33 / 32,
              "W4A8_MXFP4_FP8": 17 / 32, "INT8": 1.0}  # fmt: skip
"""ModelOpt's algorithms (hf_quant_config.json) -> bytes of a number, with the scales of their blocks."""
KEPT = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers", "exclude", "llm_int8_skip_modules")
"""Keys with the modules that were left alone."""


def number_bytes(read: Reading) -> tuple[float, float, float]:
    """Bytes of a number in tables; in attention and dense MLPs; in experts. Raises InputError: packed in a way that is
    not known."""
    config = read.config
    usual = BYTES.get(str(config.get("torch_dtype") or config.get("dtype")).removeprefix("torch."), 2.0)
    packed = config.get("quantization_config") or config.get("quantization")
    if not isinstance(packed, Mapping) or not packed:
        return usual, usual, usual
    size = _size(read, packed)
    kept = " ".join(str(one) for key in KEPT for one in _list(packed.get(key)))
    method = str(packed.get("quant_method"))
    dense = usual if method == "mxfp4" or "attn" in kept or "attention" in kept else size
    return usual, dense, size


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _size(read: Reading, packed: Mapping[str, Any]) -> float:
    """Bytes of a packed number, with its share of scales."""
    method = str(packed.get("quant_method") or packed.get("quant_type") or "").lower()
    algorithm = str(packed.get("quant_algo") or packed.get("quantization", {}) or "")
    if isinstance(packed.get("quantization"), Mapping):
        algorithm = str(packed["quantization"].get("quant_algo"))
    if algorithm.upper() in ALGORITHMS:
        return ALGORITHMS[algorithm.upper()]
    if method in METHODS:
        return METHODS[method]
    bits, group = packed.get("bits") or packed.get("w_bit") or packed.get("wbits"), packed.get("group_size")
    if method == "compressed-tensors":
        groups = packed.get("config_groups")
        first: Any = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
        bits, group = at(first, "weights.num_bits"), at(first, "weights.group_size")
    if method in ("bitsandbytes", "bnb"):
        return 0.5 + 4 / 64 if packed.get("load_in_4bit") else 1.0
    if isinstance(bits, int) and not isinstance(bits, bool) and 1 <= bits <= 16:
        scales = 2.5 / group if isinstance(group, int) and group > 0 else 0.0
        return bits / 8 + scales
    raise read.refused(f" packs its weights by {one_line(method or algorithm or 'an unknown method', 40)}")
