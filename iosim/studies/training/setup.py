"""Setup: how a model is trained: batch, sequence, attention, precision, optimizer, recomputation, backend."""

from __future__ import annotations

from dataclasses import dataclass

from iosim.base.errors import InputError, unknown_name
from iosim.base.fields import whole
from iosim.base.units import some
from iosim.studies.training.model import Decoder
from iosim.studies.training.optimizers import Optimizer, optimizer
from iosim.studies.training.precision import Precision, precision

ATTENTIONS = ("naive", "flash")
RECOMPUTE = ("none", "full", "attention")
BACKENDS = ("cuda", "cpu")
MAX_BATCH = 1 << 16
MAX_TOKENS = 1 << 24
FLASH_COLUMNS = 8
"""FlashAttention's kernels take head dimensions that are multiples of this (csrc/flash_attn/flash_api.cpp)."""


@dataclass(frozen=True)
class Setup:
    """How a model is trained.

    Args:
        batch, seq_len: sequences and tokens of each.
        attention: "naive" (scores, mask, softmax and values as tensors) or "flash"
            (scaled_dot_product_attention's fused kernel).
        causal: whether a token sees later ones.
        precision: fp32, fp16, bf16, amp-fp16, amp-bf16.
        optimizer: none, sgd, momentum, adam, adamw, adam8bit; `step` how its step runs: foreach, loop or fused.
        recompute: "none"; "full", each layer's forward again in the backward; "attention", that of
            its N x N part alone (arXiv 2205.05198, section 5, "selective").
        backend: whose kernels' saved tensors are meant, cuda or cpu. They differ in statistics and random state.
        accumulate: gradients of an earlier backward are there already and are added to.

    Raises:
        InputError: a value out of range or an unknown word.
    """

    batch: int = 1
    seq_len: int = 1024
    attention: str = "flash"
    causal: bool = True
    precision: str = "amp-bf16"
    optimizer: str = "adamw"
    step: str = "foreach"
    recompute: str = "none"
    backend: str = "cuda"
    accumulate: bool = False

    def __post_init__(self) -> None:
        whole("batch", self.batch, 1, MAX_BATCH)
        whole("seq_len", self.seq_len, 1, MAX_TOKENS)
        for option, value, known in (("`attention`", self.attention, ATTENTIONS),
                                     ("`recompute`", self.recompute, RECOMPUTE),
                                     ("`backend`", self.backend, BACKENDS)):  # fmt: skip
            if value not in known:
                raise unknown_name(option, str(value), known)
        object.__setattr__(self, "precision", precision(self.precision).name)
        chosen = optimizer(self.optimizer, self.step)
        object.__setattr__(self, "optimizer", chosen.name)

    @property
    def tokens(self) -> str:
        """The sequences and their length in words."""
        return f"{self.batch:,} x {some(self.seq_len, 'token')}"

    @property
    def number(self) -> Precision:
        return precision(self.precision)

    @property
    def rule(self) -> Optimizer:
        return optimizer(self.optimizer, self.step)

    @property
    def fused_kernel(self) -> str:
        """Which fused kernel runs for "flash": FlashAttention's has no fp32, for which CUDA has the memory-efficient
        kernel. NB: on GPUs before cc 8.0 that one runs in fp16 too, with rows of the log-sum-exp padded to 32."""
        return "memory-efficient" if self.backend == "cuda" and self.number.compute_bytes == 4 else "flash"

    def check(self, model: Decoder) -> None:
        """Refuse what PyTorch would not run without another kernel or a padded copy.

        Raises:
            InputError: says which head dimensions are accepted.
        """
        if self.attention == "flash" and self.backend == "cuda" and model.head_dim % FLASH_COLUMNS:
            raise InputError(f"`heads` {model.heads} of `width` {model.width}: head dimension {model.head_dim} is not "
                             f"possible with `attention` flash; accepted: multiples of {FLASH_COLUMNS}")  # fmt: skip

    def to_dict(self) -> dict[str, object]:
        return {
            "batch": self.batch, "seq_len": self.seq_len, "attention": self.attention, "causal": self.causal,
            "precision": self.precision, "optimizer": self.optimizer, "step": self.step, "recompute": self.recompute,
            "backend": self.backend, "accumulate": self.accumulate,
        }  # fmt: skip
