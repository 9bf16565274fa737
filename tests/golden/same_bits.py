"""Prints what iosim answers for some eighty calls, to the last digit, so that two Pythons or two machines can be held
against each other:

    python tests/golden/same_bits.py > here.txt
    python3.13 tests/golden/same_bits.py > there.txt
    cmp here.txt there.txt

Needs the package's own dependencies alone. Every twelfth call of make_predictions.py is one, with packed sequences of
tiles that end together, rankings of tiles and of orders, decoding and a serving stack: whatever compares times.
"""

from __future__ import annotations

import contextlib
import io

from make_predictions import calls

from iosim.commands.cli import main

EVERY = 12
FURTHER = (
    "predict --kernel cutlass --gpu t4 --heads 8 --seq-lens 100,1900,1000 --head-dim 64 --causal --dtype fp16",
    "predict --kernel fa2 --gpu a40 --heads 8 --seq-lens 100,1925,1000 --head-dim 64 --causal",
    "predict --kernel fa2 --gpu h100 --heads 17 --seq-len 6000 --head-dim 128 --causal --dtype bf16",
    "predict --kernel fa3 --gpu h100 --heads 16 --seq-len 4k --causal --dtype bf16 --pass fwd+bwd",
    "tiles --gpu h100 --heads 16 --seq-len 4096 --head-dim 128 --causal",
    "tiles --gpu t4 --heads 8 --seq-len 2048 --head-dim 64",
    "orders --gpu a100 --heads 8 --seq-len 4096 --head-dim 128 --causal",
    "compare --gpu l4 --heads 8 --seq-len 2048 --causal",
    "decode --gpu h100 --model llama-3-8b",
    "latency --stack vllm --gpu h100 --kv-heads 8",
    "compare --gpu a100,t4 --per joule --heads 4 --seq-len 1k --head-dim 64",
)


def answer(call: str) -> str:
    """What a call prints as JSON, or the line that refuses it."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            status = main([*call.split(), "--format", "json"])
        except SystemExit as stop:
            status = int(stop.code or 0)
    return f"{call}\nexit {status}\n{printed.getvalue()}"


if __name__ == "__main__":
    for call in (*(f"predict {call}" for call in calls()[::EVERY]), *FURTHER):
        print(answer(call))
