"""Records compiled Triton kernels as they are: `python tests/golden/make_triton.py` writes triton.json.

Needs Triton alone, no GPU. A kernel is what tests of `iosim.triton.describe` look at: its metadata, its constants, the
lines of PTX that name threads and matrix units, and its machine code. Registers are capped in one, so that it spills.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "iosim" / "integrations" / "triton" / "forward.py"
WORDS = (".reqntid", ".maxntid", "wgmma.mma_async", "mma.sync", "setmaxnreg")
CASES = {
    "small": (
        90,
        {"BLOCK_M": 64, "BLOCK_N": 32, "HEAD_DIM": 32, "STAGE": 1},
        {"num_warps": 4, "num_stages": 2},
    ),
    "spilling": (
        80,
        {"BLOCK_M": 64, "BLOCK_N": 64, "HEAD_DIM": 32, "STAGE": 1},
        {"num_warps": 4, "num_stages": 3, "maxnreg": 64},
    ),
}


def record(cc: int, constants: dict[str, int], options: dict[str, int]) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    spec = importlib.util.spec_from_file_location("forward", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fn = module.flash_forward
    words = {"sm_scale": "fp32", "Z": "i32", "H": "i32", "N_CTX": "i32", "M": "*fp32"}
    signature = {n: "constexpr" if n in constants else words.get(n, "*fp16") for n in fn.arg_names}
    source = ASTSource(fn, signature, constexprs=constants)
    compiled_kernel = triton.compile(source, target=GPUTarget("cuda", cc, 32), options=options)
    lines = [
        line.strip()
        for line in compiled_kernel.asm["ptx"].splitlines()
        if any(word in line for word in WORDS)
    ]
    metadata_names = ("name", "num_warps", "num_stages", "shared", "maxnreg", "num_ctas")
    return {
        "triton": triton.__version__,
        "cc": cc,
        "metadata": {n: getattr(compiled_kernel.metadata, n) for n in metadata_names},
        "arg_names": list(fn.arg_names),
        "constants": [[list(k), v] for k, v in compiled_kernel.src.constants.items()],
        "ptx": lines[:3],
        "cubin": base64.b64encode(zlib.compress(compiled_kernel.asm["cubin"], 9)).decode(),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
        records = {name: record(*case) for name, case in CASES.items()}
    (HERE / "triton.json").write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
