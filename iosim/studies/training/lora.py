"""LoRA's adapters: a frozen matrix beside two narrow ones that are trained (arXiv 2106.09685, section 4.1).

W x + scale * B (A x), A of `lora_rank` rows, B of as many columns, as Hugging Face's peft computes it
(src/peft/tuners/lora/layer.py, Linear.forward) without dropout, in the type of the matrix beside it.
"""

from __future__ import annotations

from iosim.studies.training.graph import Builder, Kind


def linear(
    b: Builder, at: str, matrix: str, source: str, out: int, kind: Kind, *, suffix: str = ""
) -> str:
    """`source` times one of a layer's matrices, plus the product of its adapter where it has one."""
    name = f"{at}{matrix}{suffix}"
    base = b.linear(name, source, out, kind, bias=b.model.bias)
    if matrix not in b.setup.adapted:
        return base
    b.frozen = False
    narrow = b.linear(f"{name}.lora_a", source, b.setup.lora_rank, kind, bias=False)
    wide = b.linear(f"{name}.lora_b", narrow, out, kind, bias=False)
    b.frozen = True
    scaled = b.operator("scale", f"{name}.lora", {"x": wide}, kind)
    b.hold(source)
    total = b.operator("add", f"{name}.adapted", {"x": base, "other": scaled}, kind)
    b.hold(source)
    return total
