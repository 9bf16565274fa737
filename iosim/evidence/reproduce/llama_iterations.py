"""Training iterations of LLaMA: attention over GPUs, and what else a transformer of LLaMA's form computes.

An iteration is the forward, the backward, and what gradient checkpointing computes again. Matrix products besides
attention run at the profile's achieved tensor rate; norms, rotations, optimiser, FSDP's traffic and everything on the
host are left out, so iterations come out short. Nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from iosim.hardware.profile import HardwareProfile
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed import baselines
from iosim.studies.distributed.links import Cluster
from iosim.studies.distributed.schedule import build
from iosim.studies.distributed.timing import ChunkTimes, simulate

KERNEL = "fa2"


@dataclass(frozen=True)
class Llama:
    """LLaMA-7B and the variants of arXiv 2310.03294, section 4."""

    name: str
    heads: int = 32
    kv_heads: int = 32
    layers: int = 32
    hidden: int = 4096
    ffn: int = 11008
    vocabulary: int = 32000
    head_dim: int = 128

    def attention(self, tokens: int) -> AttentionProblem:
        """A layer's attention on one sequence. Both passes."""
        return AttentionProblem(heads=self.heads, kv_heads=self.kv_heads, seq_q=tokens, head_dim=self.head_dim,
                                mask="causal", passes="fwd+bwd")  # fmt: skip

    def projection_weights(self, heads: int, kv_heads: int) -> int:
        """Weights of the Q, K, V and output projections of a layer."""
        return self.hidden * self.head_dim * 2 * (heads + kv_heads)

    @property
    def mlp_weights(self) -> int:
        return 3 * self.hidden * self.ffn

    def linear_flops(self, tokens: int, passes: float, heads: int | None = None) -> float:
        """Operations of all products with weights; `passes` forward equivalents (a backward is two). The head over the
        vocabulary is not computed again."""
        h = self.heads if heads is None else heads
        layer = self.projection_weights(h, max(1, h * self.kv_heads // self.heads)) + self.mlp_weights
        return 2.0 * tokens * (self.layers * layer * passes + 3 * self.hidden * self.vocabulary)


LLAMA_7B, LLAMA_GQA, LLAMA_33H = Llama("LLaMA-7B"), Llama("LLaMA-GQA", kv_heads=8), Llama("LLaMA-33H", 33, 33)


@dataclass(frozen=True)
class Iteration:
    """Seconds of a training iteration by part."""

    attention_s: float
    linear_s: float
    communication_s: float

    @property
    def seconds(self) -> float:
        return self.attention_s + self.linear_s + self.communication_s


def _linear_s(model: Llama, tokens: int, gpus: int, profile: HardwareProfile, heads: int | None = None) -> float:
    """Forward, again for the activations, and backward: four forwards' worth."""
    return model.linear_flops(tokens, 4, heads) / gpus / achieved_flops(profile)


def achieved_flops(profile: HardwareProfile) -> float:
    """What large fp16 products reach: measured, or the share of the specified rate that the timing model assumes."""
    measured = profile.tensor_flops_achieved_per_s.get("fp16")
    return measured or profile.need("achieved_tensor_fraction") * profile.tensor_flops("fp16")


def distributed(
    model: Llama, tokens: int, gpus: int, profile: HardwareProfile, cluster: Cluster, *, schedule: str = "balanced",
    recompute: bool = False, overlap: bool = True,
) -> Iteration:  # fmt: skip
    """A chunk schedule's iteration; `recompute` runs attention's forward twice, as checkpoints at layers make it."""
    problem = model.attention(tokens)
    times = ChunkTimes(problem, KERNEL, profile)
    built = [build(schedule, problem, gpus, backward=b) for b in (False, True)]
    seconds = [simulate(s, problem, cluster, times, overlap=overlap).total_s for s in built]
    forwards = 2 if recompute else 1
    return Iteration(model.layers * (forwards * seconds[0] + seconds[1]), _linear_s(model, tokens, gpus, profile), 0.0)


def _with_checkpoints(model: Llama, linear_s: float, both: Iterable[baselines.Baseline]) -> Iteration:
    """Two forwards of everything and a backward, as checkpoints at layers make it."""
    forward, backward = both
    return Iteration(
        model.layers * (2 * forward.compute_s + backward.compute_s), linear_s,
        model.layers * (2 * forward.communication_s + backward.communication_s),
    )  # fmt: skip


def megatron(model: Llama, tokens: int, gpus: int, profile: HardwareProfile, cluster: Cluster) -> Iteration:
    """Megatron-LM with checkpoints at layers: 14 collectives, heads padded."""
    problem, padded = model.attention(tokens), -(-model.heads // gpus) * gpus
    both = (baselines.megatron(problem, gpus, KERNEL, profile, cluster, backward=b) for b in (False, True))
    return _with_checkpoints(model, _linear_s(model, tokens, gpus, profile, padded), both)


def ring_self_attention(model: Llama, tokens: int, gpus: int, profile: HardwareProfile, cluster: Cluster) -> Iteration:
    """Ring self-attention with checkpoints at layers."""
    problem = model.attention(tokens)
    both = (baselines.ring_self_attention(problem, gpus, profile, cluster, backward=b) for b in (False, True))
    return _with_checkpoints(model, _linear_s(model, tokens, gpus, profile), both)


def attention_module_s(model: Llama, tokens: int, profile: HardwareProfile) -> float:
    """Forward of one layer's attention module on one GPU: the attention itself and its projections."""
    attention = predict(model.attention(tokens).with_(passes="fwd"), KERNEL, profile, method="capacity").time.total_s
    weights = model.projection_weights(model.heads, model.kv_heads)
    return attention + 2 * tokens * weights / achieved_flops(profile)


ADAM_BYTES = 16
"""Bytes a parameter with mixed-precision Adam: weight and gradient in 2 bytes each, three fp32 values."""
LOGIT_BYTES = 10
"""Bytes an entry of the logits: fp16, fp32, and an fp32 gradient."""
MLP_TENSORS, HIDDEN_TENSORS = 6, 12
"""Tensors of the MLP's width and of the model's width alive while one layer is computed again and differentiated."""


def training_bytes(model: Llama, tokens: int, gpus: int) -> float:
    """Memory of a GPU: sharded parameters, two checkpoints of the model's width a layer, one layer's working set, and
    the logits. An estimate from counted tensors, not a measurement."""
    layer = model.projection_weights(model.heads, model.kv_heads) + model.mlp_weights
    parameters = model.layers * layer + 2 * model.hidden * model.vocabulary
    checkpoints = model.layers * 2 * model.hidden * 2
    working = 2 * (MLP_TENSORS * model.ffn + HIDDEN_TENSORS * model.hidden)
    return ADAM_BYTES * parameters / gpus + tokens / gpus * (checkpoints + working + LOGIT_BYTES * model.vocabulary)
