"""One attention call in vLLM and SGLang: part by part, a batch of contexts, constants from twenty measured calls.

Run it as `python examples/serving_stack.py`; examples/output/serving_stack.txt holds what it prints.
"""

from pathlib import Path

import iosim
from iosim.base.units import seconds_text
from iosim.studies.latency.fit import calibrate_times, read_times

TIMES = Path(__file__).with_name("vllm_times.csv")


def parts() -> None:
    """Where the time of a decoding step goes, by stack and GPU."""
    print(
        "16 sequences of 8,192 tokens, one new token each, 32 heads and 8 key/value heads, one layer"
    )
    for call in iosim.latency(
        stack="vllm,sglang", gpu="a100,h100", batch=16, kv_heads=8, seq_len=1, seq_len_k="8k"
    ):
        parts_text = ", ".join(f"{part.name} {seconds_text(part.seconds)}" for part in call.parts)
        print(
            f"  {call.stack.name:<7} {call.prediction.profile.name:<14} {seconds_text(call.total_s):>8}: {parts_text}"
        )


def grouping() -> None:
    """vLLM's FlashAttention-2 splits keys only where heads of a group share a tile."""
    print("\nvLLM on an A100, one sequence of 65,536 tokens")
    for kv_heads in (8, 32):
        (call,) = iosim.latency(
            stack="vllm", gpu="a100", heads=32, kv_heads=kv_heads, seq_len=1, seq_len_k="64k"
        )
        print(
            f"  {kv_heads:>2} key/value heads: {call.prediction.kernel.splits:>2} splits, {seconds_text(call.total_s)}"
        )


def batches() -> None:
    """A continuous batch is one launch, whose sequences are all split alike: its longest decides."""
    print("\nvLLM on an A100: 64k tokens of context in all, as one batch")
    for contexts in ([16384] * 4, [1024, 1024, 4096, 59392]):
        (call,) = iosim.latency(stack="vllm", gpu="a100", batch_contexts=contexts, kv_heads=8)
        print(f"  {', '.join(f'{n:,}' for n in contexts)}: {seconds_text(call.total_s)}")


def calibration() -> None:
    """Twenty published calls of vLLM on an H100 as if they were one's own."""
    calibrated = calibrate_times(read_times(str(TIMES)), "vllm", iosim.load_profile("h100"))
    print(f"\n{calibrated.answer}")


if __name__ == "__main__":
    parts()
    grouping()
    batches()
    calibration()
