"""What commands print, line by line: of every command that predicts, a small call or two."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from iosim.commands.cli import main

DATA = Path(__file__).resolve().parent.parent / "data"
PTX = DATA.parent / "code" / "ptx"
SQUARES = (
    "--arg in=TENSOR(128x128,fp32) --arg out=TENSOR(128x128,fp32) --arg rows=128 --arg columns=128"
)
SMALL = "--heads 4 --seq-len 1k --head-dim 64"
CALLS = (
    f"predict --gpu h200 --kernel fa2 --causal {SMALL}",
    f"predict --gpu a100 --kernel flash --splits 2 --method sampled {SMALL} --format json",
    f"compare --gpu a100 --kernel naive,fa2,flash1 {SMALL}",
    f"compare --gpu a100,t4 --kernel fa2,cutlass {SMALL} --format csv",
    f"tiles --gpu rtx-4090 {SMALL}",
    f"tiles --gpu a100 --tile 128x64 {SMALL}",
    f"explain --gpu h200 --causal {SMALL}",
    f"orders --gpu h100 --causal {SMALL}",
    f"trace --gpu h200 {SMALL}",
    "decode --context 1k,4k --gpu h100",
    "latency --stack vllm --gpu h200 --seq-len 512",
    "ring --num-gpus 4 --causal --heads 8 --seq-len 8k --gpu h100",
    "ring --num-gpus 4 --gpu h100 --model llama-3-8b --seq-len 8k --format json",
    "train-memory --gpu l4 --layers 2 --seq-len 512",
    "train-memory --frontier layers --layers 2,4 --seq-len 1k,4k --gpu l4",
    "formula fa2",
    "formula flash1 --seq-len 1k --gpu a100",
    "kernels list --format csv",
    "kernels show flash-cu",
    "kernels show fa2",
    "kernels show cutlass --format json",
    "profiles list --format csv",
    "profiles show t4 --format csv",
    "models list --format csv",
    "models show gemma-2-9b",
    "reproduce --section A",
    "check-claim --hbm 1MB --kernel fa2 --gpu a100",
    f"sweep --gpu a100,h100 --kernel fa2,flash {SMALL}",
    f"sweep --gpu a100,h100 --kernel fa2,flash --causal --l2 warm {SMALL} --format json",
    "schema",
    f"predict --gpu a100 --kernel naive --method capacity --dropout 0.1 --pass fwd+bwd {SMALL} --format csv",
    f"predict --gpu a100 --kernel flash --bias alibi --causal --l2 warm {SMALL}",
    "predict --gpu a100 --kernel fa2 --heads 8 --kv-heads 2 --seq-len 1 --seq-len-k 4k --page-size 256 --batch 4",
    "compare --gpu a100 --kernel naive,fa2 --pass fwd+bwd --seq-len 512 --heads 2 --head-dim 64 --format json",
    "compare --gpu h100 --model llama-3-8b --kernel fa2,fa3 --seq-len 1k",
    f"tiles --gpu a100 --tile 256x256 {SMALL} --format json",
    f"tiles --gpu h100 --pass bwd {SMALL} --format csv",
    f"explain --gpu a100 --kernel flash1 {SMALL} --format json",
    f"explain --gpu a100 --kernel flash --direction alternating {SMALL}",
    f"orders --gpu a100 --window 200 {SMALL} --format csv",
    f"trace --gpu a100 --causal {SMALL} --format json",
    "decode --context 1k,4k --gpu a100 --model llama-3-8b --format json",
    "decode --context 4k --gpu h100 --batch 16 --model llama-3-8b",
    "model llama-3-8b,deepseek-v2-lite --gpu h100 --seq-len 512 --layers 3",
    "model mixtral-8x7b --gpu a100 --context 4k --batch 4 --fused --format json",
    "model gpt2 --gpu h100 --seq-len 256 --training --format csv",
    "latency --stack vllm,sglang --gpu h200 --seq-len 1 --seq-len-k 512,4k --format json",
    "ring --num-gpus 8 --causal --heads 8 --seq-len 8k --gpu a100 --pass bwd --format csv",
    "train-memory --gpu a100 --model llama-3-8b --seq-len 2k",
    "formula naive --pass bwd --causal --format json",
    "formula fa2 --seq-len 2k --causal --gpu a100 --format json",
    "reproduce --section B --format csv",
    "check-claim --l2 40MB --kernel fa2 --gpu a100 --causal --heads 4 --seq-len 4k --format json",
    "check-claim --hbm 33.5MB --kernel flash --gpu a100 --heads 8 --seq-len 4k",
    "models show mistral-7b --format json",
    "reproduce --list",
    f"validate --ncu {DATA}/ncu_h200.csv --gpu h200",
    f"validate --ncu {DATA}/ncu_h200.csv --gpu h200 --format csv",
    "predict --gpu a100 --kernel fa3",
    "predict --gpu a100 --kernel flash --tile 256x256 --head-dim 256",
    "predict --gpu a100 --heads 3 --kv-heads 2",
    "tiles --gpu a100 --tile 7x9",
    "predict --model llama-3-8b --seq-len 2k --gpu h100",
    f"compare --gpu a100,h100 --per dollar --price a100=1.5,h100=2.5 --batch 1,4 {SMALL}",
    "compare --model llama-3-8b --gpu a100,h200 --per token --batch 8 --seq-len 1 --seq-len-k 4k --format json",
    f"compare --gpu a100,t4 --per joule {SMALL}",
    f"ncu-rule --launch {DATA}/ncu_launch.json",
    f"ncu-rule --launch {DATA}/ncu_launch_untold.json --seq-len 4096 --heads 32 --head-dim 128 --causal",
    f"calibrate --from {DATA}/calibrate_h200.json",
    "measure --plan quick --dry-run --cc 9.0",
    "measure --plan random --calls 20 --dry-run --cc 9.0",
    "measure --kernel flash_fwd,naive --seq-len 512,1k --causal --dry-run --cc 8.0",
    f"validate --ncu {DATA}/ncu_user.csv --seq-len 1000,4096 --heads 8 --head-dim 64,128 --causal",
    "validate --times --every 60",
    "validate --published --gpu h100",
    f"orders --gpu h100 --causal {SMALL} --code triton",
    f"orders --gpu h100 --kernel flash --direction alternating --fold {SMALL} --code cuda",
    f"predict --code {PTX}/plain.sass --entry column_read --grid 4,4 --block 32,8 {SQUARES} --gpu h100",
    f"explain --code {PTX}/plain.sass --entry column_read --grid 4,4 --block 32,8 {SQUARES} --gpu h100",
    "profiles show t4 --format json",
    "reproduce --section F --format csv",
    "check-claim --time 1ms --kernel fa2 --gpu a100 --seq-len 4k",
    "check-claim --tflops 200 --kernel fa2 --gpu a100 --seq-len 4k --format json",
    "check-claim --ratio 9 --kernel fa2 --gpu a100 --seq-len 4k",
    "model deepseek-v3.2 --gpu h200 --context 2k --batch 2 --layers 3",
    "decode --context 2k --gpu h200 --model deepseek-v3 --format json",
    "orders --check-constant section=50MiB --gpu a100 --seq-len 1k --heads 8 --format csv",
    f"orders --gpu a100 {SMALL} --code formula --format json",
    f"tiles --gpu t4 --kernel flash {SMALL} --rejected",
    "tiles --gpu h100 --model llama-3-8b --seq-len 512",
    "predict --gpu h100 --model gemma-3-4b --layers 6 --seq-len 2k --format json",
    "predict --gpu mi300x --heads 8 --seq-len 1k --head-dim 128 --causal --dtype bf16",
    "predict --gpu h100 --kernel flex --mask butterfly --seq-len 2k --heads 4",
    "predict --gpu h100 --kernel fa3 --seq-lens 100,300,50 --heads 8 --causal --dtype bf16",
    "predict --gpu h100 --kernel flashmla --latent-kv --head-dim 576 --head-dim-v 512 --heads 16 --page-size 64 "
    "--seq-len 1 --seq-len-k 2k",
    f"explain --code {PTX}/flash_forward.sass --gpu h100 --format json",
    "sweep --gpu a100 --kernel fa2 --heads 8 --seq-len 512:2k:x2 --method bounds --pass fwd,bwd",
    "sweep --model llama-3-8b --gpu h100 --seq-len 512 --batch 1,2",
    "ring --num-gpus 4 --causal --heads 8 --seq-len 8k --gpu h100 --pass fwd+bwd",
    "model llama-3-8b --gpu h100,a100 --seq-len 512 --layers 2 --format json",
    "train-memory --gpu h100 --layers 4 --seq-len 1k --recompute full --lora-rank 16 --precision bf16 --format json",
    "train-memory --gpu h100 --layers 4 --data-parallel 4 --zero 2",
    "train-memory --frontier batch --batch 1,2,4 --seq-len 1k --gpu l4 --format csv",
    "decode --gpu h200 --model deepseek-v3.2 --context 4k",
    "decode --gpu h100 --model gemma-3-4b --context 1k,8k --batch 4 --format csv",
    "latency --stack vllm --gpu a100 --seq-lens 1,1,512 --seq-lens-k 1k,4k,512",
    "formula cutlass --pass bwd --gpu a100 --seq-len 2k",
    "reproduce --section D --format csv",
    "models show deepseek-v3.2 --format json",
    "predict --model mistral-7b --gpu h100 --seq-len 8k --method capacity --format csv",
    "trace --gpu a100 --kernel naive --heads 1 --seq-len 128 --head-dim 64 --format chrome",
)
"""Calls of each command, and such as execute lines that no other does."""


ROWS_OF = {
    "kernels list --format csv": ("name", "fa2", "naive"),
    "profiles list --format csv": ("name", "t4", "h100-sxm"),
    "models list --format csv": ("name", "gpt2", "llama-3-8b"),
    "schema": ("compare", "predict"),
}
"""Lists that grow: the rows of them that are recorded, so that a kernel, a GPU, a model or a command moves none."""
FIRST_CALLS = tuple(
    {line.split()[0]: line for line in reversed(CALLS) if "--section" not in line}.values()
)
"""The first call of each command."""


def named(text: str) -> str:
    """A text without the place of this tree."""
    return text.replace(str(DATA), "data").replace(str(PTX), "ptx")


def cases(calls: Sequence[str] = CALLS) -> Iterator[tuple[str, Any]]:
    for line in calls:
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                code: Any = main(line.split())
            except SystemExit as end:
                code = end.code
        text = named(output.getvalue())
        printed = (
            json.loads(text) if line.endswith("--format json") and not code else text.splitlines()
        )
        if line in ROWS_OF:
            printed = [row for row in printed if row.partition(",")[0] in ROWS_OF[line]]
        yield named(line), [code, errors.getvalue().splitlines(), printed]
