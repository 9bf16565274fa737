"""Draws the README's figure: `python docs/generated/make_figure.py`. It needs chromium.

Bytes of attention against the sequence length on an H200: naive and cuDNN, between SMs and L2 and at HBM, beside the
compulsory bytes.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from make_tutorial import picture

import iosim

TARGET = Path(__file__).resolve().parent.parent / "images" / "bytes.png"


def main() -> None:
    lengths = [1024 << n for n in range(7)]
    compared = iosim.compare(
        kernel=["naive", "fa2", "cudnn"],
        gpu="h200",
        heads=8,
        seq_len=lengths,
        head_dim=128,
        causal=True,
        dtype="bf16",
    )
    figure = compared.figure("overview-1")
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_bytes(base64.b64decode(picture(json.loads(figure.to_json()))))


if __name__ == "__main__":
    main()
