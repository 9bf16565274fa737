"""Kernels of whole models of transformers, counted where they run: which ones PyTorch takes, and what each moves.

    python experiments/transformers_kernels.py --out KERNELS.csv [--seconds 480] [--models NAME[:PASS],...]
        [--counted hbm_read,hbm_write] [--kernels REGEX] [--dry-run]

One process under Nsight Compute steps the models of `transformers_models.py` and a few others, forward under no_grad
and then forward and backward, each from a flushed L2, and every kernel of a step is counted as the one before left the
L2. `NAME:bwd` counts the backward alone, behind a forward that is not counted; `--kernels` those of some names alone.
Kernels named `erfinv` stand between two steps. `--seconds`: what runs then is broken off. A row of the table is a
kernel: its step, its number, its name, its grid and block, and bytes at HBM and between SMs and L2. Needs a GPU, ncu
and transformers; `--dry-run` steps the models on the meta device instead and prints how many operators they run.
"""

from __future__ import annotations

import argparse
import csv
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
import transformers_models as models

from iosim.evidence.columns import METRICS
from iosim.evidence.cuda.ncu import Profiled, import_report, parse_raw
from iosim.evidence.measure.collect import run_profiler
from iosim.torch import TrafficMode

COUNTED = models.QUANTITIES
MARK = "erfinv"
FLUSH_BYTES = 1 << 30
NAME_LENGTH = 140
TEXT = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_hidden_layers": 4,
    "vocab_size": 32000,
    "intermediate_size": 4096,
    **models.TOKENS,
}
MORE: dict[str, Any] = {
    "deberta": ("DebertaV2ForMaskedLM", "DebertaV2Config", TEXT, {"input_ids": (8, 512)}),
    "qwen3moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig",
                 {**TEXT, "num_key_value_heads": 4, "head_dim": 64, "num_experts": 16, "num_experts_per_tok": 4,
                  "moe_intermediate_size": 768}, {"input_ids": (2, 2048)}),
    "wav2vec2": ("Wav2Vec2ForCTC", "Wav2Vec2Config", {"num_hidden_layers": 4, "apply_spec_augment": False},
                 {"input_values": (8, 80000)}),
    "bart": ("BartForConditionalGeneration", "BartConfig",
             {"encoder_layers": 4, "decoder_layers": 4, "vocab_size": 50265},
             {"input_ids": (8, 512), "decoder_input_ids": (8, 256)}),
    "convnext": ("ConvNextForImageClassification", "ConvNextConfig", {}, {"pixel_values": (32, 3, 224, 224)}),
    "modernbert2": ("ModernBertForMaskedLM", "ModernBertConfig",
                    {"num_hidden_layers": 2, "vocab_size": 32000, **models.TOKENS}, {"input_ids": (8, 1024)}),
    "gemma3two": ("Gemma3ForCausalLM", "Gemma3TextConfig",
                  {**models.GEMMA, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
                  {"input_ids": (2, 4096)}),
    "segformer1": ("SegformerForImageClassification", "SegformerConfig", {"depths": [1, 1, 1, 1]},
                   {"pixel_values": (8, 3, 512, 512)}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", TEXT, {"input_ids": (4, 1024)}),
}  # fmt: skip
"""Models beside those of `transformers_models.py`, in the same form."""
ALL = {**models.MODELS, **MORE}
PASSES = ("fwd", "fwd+bwd")


def step_of(name: str, passes: str, device: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """(what comes before a step, a step that takes what that gives) of a model."""
    kind, configuration, keys, shapes = ALL[name]
    torch.manual_seed(7)
    config = getattr(transformers, configuration)(**keys)
    with torch.device(device):
        model = getattr(transformers, kind)._from_config(config, dtype=models.DTYPE).to(device)
        inputs = {
            key: torch.randint(10, 1000, shape)
            if "ids" in key
            else torch.randn(shape, dtype=models.DTYPE)
            for key, shape in shapes.items()
        }
    model.train(passes != "fwd")

    def forward(_: Any) -> Any:
        with torch.no_grad():
            return model(**inputs)

    def loss() -> Any:
        model.zero_grad(set_to_none=True)
        return model(**inputs).logits.float().mean()

    if passes == "fwd":
        return (lambda: None), forward
    if passes == "bwd":
        return loss, lambda out: out.backward()
    return (lambda: None), lambda _: loss().backward()


def cases(names: str) -> Iterator[tuple[str, str]]:
    for entry in names.split(",") if names else ALL:
        name, _, one_pass = entry.partition(":")
        for passes in (one_pass,) if one_pass else PASSES:
            yield name, passes


def _break_off(*_: Any) -> None:
    raise SystemExit("no time is left")


def step_all(names: str, seconds: float) -> None:
    """Every case between two calls of the profiler's, marked at its end."""
    # A process that ends by itself leaves the profiler the kernels that it has counted.
    signal.signal(signal.SIGALRM, _break_off)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    began = time.monotonic()
    runtime: Any = torch.cuda.cudart()
    mark = torch.zeros(1, device="cuda")
    for name, passes in cases(names):
        try:
            before, step = step_of(name, passes, "cuda")
            for _ in range(2):
                step(before())
            torch.zeros(FLUSH_BYTES // 4, device="cuda").sum()
            state = before()
            torch.cuda.synchronize()
            runtime.cudaProfilerStart()
            step(state)
            torch.cuda.synchronize()
        except Exception as error:  # a model that this version of transformers lacks
            print(f"{name} {passes}: {str(error)[:200]}", flush=True)
            runtime.cudaProfilerStart()
        torch.erfinv(mark)
        torch.cuda.synchronize()
        runtime.cudaProfilerStop()
        print(f"{name} {passes}: {time.monotonic() - began:.0f} s", flush=True)
        before = step = state = None
        torch.cuda.empty_cache()


def profiled(
    names: str, seconds: float, folder: Path, counted: tuple[str, ...], kernels: str
) -> list[Profiled]:
    """Kernels of all cases, with some of what is counted."""
    report = folder / "report"
    metrics = ",".join(METRICS[name][0] for name in counted)
    options = (
        "--replay-mode",
        "kernel",
        "--cache-control",
        "none",
        "--clock-control",
        "none",
        "--profile-from-start",
        "off",
        "--metrics",
        metrics,
        "-f",
        "-o",
        str(report),
    )
    if kernels:
        options += ("-k", f"regex:{MARK}|{kernels}")
    command = [sys.executable, __file__, "--models", names, "--seconds", str(seconds), "--step"]
    printed = run_profiler(options, command)
    print(re.sub(r"==PROF==.*\n?", "", printed)[-3000:])
    return parse_raw(import_report(report.with_suffix(".ncu-rep")))[0]


def passes_needed() -> int:
    """How often the profiler runs a kernel to count all of it."""
    metrics = ",".join(METRICS[name][0] for name in COUNTED)
    program = "import torch; torch.zeros(1 << 20, device='cuda').exp_()"
    with tempfile.TemporaryDirectory() as folder:
        options = ["--metrics", metrics, "-c", "1", "-f", "-o", f"{folder}/one"]
        printed = run_profiler(options, [sys.executable, "-c", program])
    counts = re.findall(r"(\d+) pass", printed)
    return int(counts[-1]) if counts else 2


def table(launches: list[Profiled], names: str) -> Iterator[list[object]]:
    steps = cases(names)
    case, number = next(steps), 0
    for launch in launches:
        if MARK in launch.kernel:
            case = next(steps, ("", ""))
            number = 0
            continue
        number += 1
        counters = [round(launch.metrics.get(METRICS[name][0], 0)) for name in COUNTED]
        grid, block = ("x".join(map(str, size or ())) for size in (launch.grid, launch.block))
        yield [
            *case,
            number,
            launch.kernel.removeprefix("void ")[:NAME_LENGTH],
            grid,
            block,
            *counters,
        ]


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--out", default="")
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--models", default="")
    parser.add_argument("--kernels", default="")
    parser.add_argument("--counted", default=",".join(COUNTED))
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--step", action="store_true")
    options = parser.parse_args()
    if options.step:
        step_all(options.models, options.seconds)
        return
    if options.dry_run:
        for name, passes in cases(options.models):
            before, step = step_of(name, passes, "meta")
            with TrafficMode("h100", cudnn=models.CUDNN) as mode:
                step(before())
            print(name, passes, len(mode.result.rows), "operators")
        return
    print(torch.__version__, torch.backends.cudnn.version(), transformers.__version__)
    print(torch.cuda.get_device_name())
    wanted = tuple(options.counted.split(","))
    once = len(wanted) <= 2 or passes_needed() == 1
    print("counted in one run" if once else "counted in two runs")
    seconds = options.seconds if once else options.seconds / 2
    launches: list[Profiled] = []
    for counted in (wanted,) if once else (wanted[:2], wanted[2:]):
        with tempfile.TemporaryDirectory() as folder:
            others = profiled(options.models, seconds, Path(folder), counted, options.kernels)
        launches = launches or others
        for launch, other in zip(launches, others, strict=False):
            if launch.kernel == other.kernel:
                launch.metrics.update(other.metrics)
        # What is there is written after each run: the second may find no time.
        with open(options.out, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("model", "pass", "number", "kernel", "grid", "block", *COUNTED))
            writer.writerows(table(launches, options.models))


if __name__ == "__main__":
    main()
