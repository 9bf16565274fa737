"""Triton configurations without a GPU: a ranked list, and a model that prunes what triton.autotune measures.

    python examples/triton_configs.py

Predictions stand beside the recorded times of an H200 (experiments/measurements/triton_tiles_d64_time.csv), of which
nothing is an input.
"""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace

from iosim import AttentionProblem, predict
from iosim.integrations.triton.kernel import Config, rank, ranked, source
from iosim.integrations.triton.streaming_mask import streaming_mask
from iosim.triton import TritonModel, describe, launch_metadata

RECORDED = (
    Path(__file__).resolve().parent.parent
    / "experiments"
    / "measurements"
    / "triton_tiles_d64_time.csv"
)
PROBLEM = AttentionProblem(heads=32, seq_q=4096, head_dim=64, dtype="bf16")


def recorded() -> dict[Config, float]:
    """Measured milliseconds by configuration."""
    with RECORDED.open(encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["BM"]]
    sides = ("BM", "BN", "warps", "stages")
    return {Config(*(int(float(r[n])) for n in sides)): float(r["ms"]) for r in rows}


def main() -> None:
    print(source(ranked(["h200"], [PROBLEM], 3, "all")))

    measured = recorded()
    best = min(measured.values())
    print(
        "predicted rank among the recorded configurations, predicted ms, measured ms, above the best measured"
    )
    for n, t in enumerate(rank(PROBLEM, "h200", measured), 1):
        if n <= 5:
            ms = measured[t.config]
            print(f"{n}  {t.config.text():<75}{t.time_s * 1e3:.3f}  {ms:.3f}  {ms / best - 1:+.1%}")

    # What triton.autotune(..., prune_configs_by=model.prune_configs_by(top_k=4)) would ask of the model:
    model = TritonModel("h200")
    call = {"Z": 1, "H": 32, "N_CTX": 4096, "HEAD_DIM": 64, "STAGE": 3}
    for block_m, block_n in ((64, 32), (128, 64), (256, 128)):
        ms = model.perf_model(
            **call, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=4, num_stages=3, num_ctas=1
        )
        print(f"causal, BLOCK_M {block_m}, BLOCK_N {block_n}: {ms:.3f} ms")

    # A compiled kernel, as Triton gives it; here a stand-in with what the driver said of one that spills 190 words.
    metadata = SimpleNamespace(name="_attn_fwd", num_warps=4, num_stages=3, shared=131072)
    compiled = SimpleNamespace(
        metadata=metadata, asm={"ptx": "wgmma.mma_async"}, n_regs=255, n_spills=190
    )
    args = call | {"STAGE": 1, "BLOCK_M": 256, "BLOCK_N": 128}
    kernel = describe(compiled, (16, 32, 1), args)
    time = predict(PROBLEM, kernel, "h200").time
    spilling = measured[Config(256, 128, 4, 3)]
    print(
        f"compiled, {kernel.registers} registers: {time.total_s * 1e3:.3f} ms, {spilling:.3f} measured"
    )

    # What Proton would be told of its launches:
    launch_facts = launch_metadata("h200")((16, 32, 1), metadata, args)
    print(
        f"{launch_facts['name']}: {launch_facts['bytes'] / 1e6:.1f} MB of HBM, {launch_facts['flops16'] / 1e9:.1f} GFLOP"
    )

    # The article's block-sparse kernel: chunks of 128 tokens that see themselves and three before them.
    sparse = PROBLEM.with_(mask="blocks", mask_blocks=streaming_mask(4096, 128, 3))
    best_timed = rank(sparse, "h200", name="triton-streaming")[0]
    print(
        f"block-sparse, 4 chunks of 32: {best_timed.config.text()}, {best_timed.time_s * 1e3:.4f} ms"
    )


if __name__ == "__main__":
    main()
