"""In how many bytes a model's numbers are held: by its type, and by what packed its weights, part by part.

A quantisation names one size for all, one for each of several groups of modules, or one for every module; and it says
which modules it left alone. Parts are attention (and what keeps a state), dense MLPs, and experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from iosim.base.schema import one_line
from iosim.integrations.models.reading import Reading, at

BYTES = {
    **dict.fromkeys(("float64", "fp64", "double"), 8.0),
    **dict.fromkeys(("float32", "fp32", "float", "tf32"), 4.0),
    **dict.fromkeys(("bfloat16", "bf16", "float16", "fp16", "half", "auto"), 2.0),
    **dict.fromkeys(("fp8", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"), 1.0),
}
"""Types of numbers -> bytes."""
SCALE, ZERO = 2.0, 0.5
"""Bytes of a group's scale, and of its 4-bit zero, beside integers."""
METHODS = {
    "fp8": 1.0,
    "fbgemm_fp8": 1.0,
    "mxfp4": 17 / 32,
    "mxfp8": 33 / 32,
    "bitnet": 0.25,
    "nvfp4": 9 / 16,
    "higgs": 0.52,
}
"""What packed the weights -> bytes of a number, with the scales: of MXFP4 one for every 32, of NVFP4 for every 16."""
ALGORITHMS = {
    "FP8": 1.0,
    "FP8_PER_CHANNEL_PER_TOKEN": 1.0,
    "FP8_PB_WO": 1.0,
    "NVFP4": 9 / 16,
    "NVFP4_AWQ": 9 / 16,
    "W4A16_NVFP4": 9 / 16,
    "W4A8_NVFP4_FP8": 9 / 16,
    "W4A16_AWQ": 0.5 + 2.5 / 128,
    "W4A8_AWQ": 0.5 + 2 / 128,
    "W8A16": 1.0,
    "W8A8_SQ_PER_CHANNEL": 1.0,
    "INT4_AWQ": 0.5 + 2.5 / 128,
    "MXFP8": 33 / 32,
    "MXFP4": 17 / 32,
    "W4A8_MXFP4_FP8": 17 / 32,
    "INT8": 1.0,
}
"""ModelOpt's algorithms (hf_quant_config.json) -> bytes of a number, with the scales of their blocks."""
KEPT = (
    "modules_to_not_convert",
    "ignore",
    "exclude_modules",
    "ignored_layers",
    "exclude",
    "llm_int8_skip_modules",
)
"""Keys with the modules that were left alone."""
PARTS = {
    "experts": re.compile(r"(?<!shared_)(?<!shared)experts(?!_bias)"),
    "attention": re.compile(r"attn|attention|mixer\.(in|out|q|k|v|o)_proj|mamba"),
    "dense": re.compile(
        r"shared_?expert|mlp(?!\.gate$|\.gate\b(?!_))|ffn|feed_forward|mixer\.(up|down)_proj"
    ),
}
"""Part -> what the names of its modules hold; the first that fits."""
SMALL = re.compile(r"norm|rotary|indexer|kv_[ab]|router|k_scale|v_scale|conv1d|\.gate$|bias")
"""Modules that are small parts of theirs, or none."""
LAYER = re.compile(r"(?:layers|blocks|h)\.(\d+)\.")


class Sizes(NamedTuple):
    """Bytes of a number by part."""

    tables: float
    attention: float
    experts: float
    dense: float


def number_bytes(read: Reading, layers: int) -> Sizes:
    """Bytes of a number in each part. Raises InputError: packed in a way that is not known."""
    config = read.config
    kind = config.get("torch_dtype") or config.get("dtype") or "bfloat16"
    type_bytes = BYTES.get(str(kind).removeprefix("torch.").lower())
    if type_bytes is None:
        raise read.refused(f" has numbers of type {one_line(str(kind), 40)}, which is not known")
    packed = config.get("quantization_config") or config.get("quantization")
    if not packed:
        return Sizes(type_bytes, type_bytes, type_bytes, type_bytes)
    if not isinstance(packed, Mapping):  # the method's name alone
        packed = {"quant_method": packed}
    thinned = at(packed, "sparsity_config.format")
    if thinned not in (None, "dense"):  # fewer numbers are held than the matrices have
        raise read.refused(f" packs its weights by {one_line(str(thinned), 40)}")
    by_module = _by_module(packed)
    base = _whole(packed)
    if base is None and not by_module:
        method = packed.get("quant_method") or packed.get("quant_algo") or "an unknown method"
        raise read.refused(f" packs its weights by {one_line(str(method), 40)}")
    unpacked = set(_left_alone(packed, layers))
    if str(packed.get("quant_method")) == "mxfp4":  # gpt-oss's: experts alone
        unpacked |= {"attention", "dense"}
    sizes = {part: by_module.get(part, type_bytes if base is None else base) for part in PARTS}
    sizes |= {part: type_bytes for part in unpacked if part not in by_module}
    if config.get("expert_dtype") == "fp4" and "experts" not in by_module:  # DeepSeek-V4's
        sizes["experts"] = METHODS["mxfp4"]
    return Sizes(type_bytes, sizes["attention"], sizes["experts"], sizes["dense"])


def _part(name: str) -> str | None:
    if SMALL.search(name):
        return None
    return next((part for part, words in PARTS.items() if words.search(name)), None)


def _left_alone(packed: Mapping[str, Any], layers: int) -> Iterator[str]:
    """Parts that were left alone, in at least half of the layers."""
    named: dict[str, set[str]] = {}
    for name in (str(module) for key in KEPT for module in _list(packed.get(key))):
        part, place = _part(name.replace("\\", "")), LAYER.search(name)
        if part is not None:
            named.setdefault(part, set()).add("all" if place is None else place[1])
    for part, places in named.items():
        if "all" in places or 2 * len(places) >= layers:
            yield part


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _by_module(packed: Mapping[str, Any]) -> dict[str, float]:
    """Bytes by part, where modules are named one by one or in several groups."""
    pairs: list[tuple[str, float | None]] = []
    modules = packed.get("quantized_layers")
    if isinstance(modules, Mapping):
        pairs += [(str(name), _algorithm(entry)) for name, entry in modules.items()]
    groups = packed.get("config_groups")
    if isinstance(groups, Mapping) and len(groups) > 1:
        for group in groups.values():
            pairs += [(str(name), _group(group)) for name in _list(at(group, "targets"))]
    experts = packed.get("moe_quant_algo")
    part_bytes: dict[str, float] = (
        {} if experts not in ALGORITHMS else {"experts": ALGORITHMS[str(experts)]}
    )
    for name, size in _known(pairs):
        part = _part(name)
        if part is not None:
            part_bytes.setdefault(part, size)
    return part_bytes


def _known(pairs: Iterable[tuple[str, float | None]]) -> Iterator[tuple[str, float]]:
    return ((name, size) for name, size in pairs if size is not None)


def _algorithm(entry: Any) -> float | None:
    name = entry.get("quant_algo") if isinstance(entry, Mapping) else entry
    return ALGORITHMS.get(str(name).upper())


def _group(group: Any) -> float | None:
    """Bytes of a number of one of compressed-tensors' groups."""
    bits, size, kind = (at(group, f"weights.{key}") for key in ("num_bits", "group_size", "type"))
    return _bits(bits, size, scale=1.0 if kind == "float" else SCALE + ZERO)


def _bits(bits: Any, group: Any, *, scale: float) -> float | None:
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 16:
        return None
    if isinstance(group, bool) or not isinstance(group, int | None):
        return None
    return bits / 8 + (scale / group if group is not None and group > 0 else 0.0)


def _whole(packed: Mapping[str, Any]) -> float | None:
    """Bytes of a number where one size holds for all; None where it is not known."""
    method = str(packed.get("quant_method") or packed.get("quant_type") or "").lower()
    algorithm = _algorithm(packed.get("quant_algo") or at(packed, "quantization.quant_algo"))
    if algorithm is not None:
        return algorithm
    groups = packed.get("config_groups")
    if isinstance(groups, Mapping) and groups:
        return _group(next(iter(groups.values())))
    if method in METHODS:
        return METHODS[method]
    if method in ("bitsandbytes", "bnb"):
        if not (packed.get("load_in_4bit") or packed.get("_load_in_4bit")):
            return 1.0
        # A scale of 4 bytes for 64 numbers; where scales are packed, too, of 1, and 4 more for 256 of them.
        packed_scales = packed.get("bnb_4bit_use_double_quant")
        return 0.5 + ((1 + 4 / 256) / 64 if packed_scales else 4 / 64)
    bits = packed.get("bits") or packed.get("w_bit") or packed.get("wbits") or packed.get("nbits")
    return _bits(bits, packed.get("group_size", packed.get("q_group_size")), scale=SCALE + ZERO)
