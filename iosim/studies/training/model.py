"""What is trained and how: a decoder, and its setup with a precision and an optimizer.

Sources of the optimizers' states and temporaries: PyTorch, torch/optim/adam.py (`_multi_tensor_adam`,
`_single_tensor_adam`) and sgd.py; bitsandbytes, bitsandbytes/optim/optimizer.py (`Optimizer2State.init_state`) for Adam
with 8-bit states (arXiv 2110.02861). The counters of Adam's steps are tensors on the host unless the step is fused.
"""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base import fields as ask
from iosim.base.errors import InputError, unknown_name
from iosim.base.fields import UNSET, Resolved, put_checked
from iosim.base.records import asdict, dataclass, plain
from iosim.base.units import some
from iosim.problem.dtypes import dtype, is_dtype


@dataclass(frozen=True)
class Precision:
    """`parameter_bytes` an element of parameters, gradients and optimizer states; `compute_bytes` an element of what
    matrix products read and write; `dtype` names their type. With `autocast` the two differ: products get half copies
    of fp32 operands, and the residual stream stays in fp32."""

    name: str
    dtype: str
    parameter_bytes: int
    compute_bytes: int

    @property
    def autocast(self) -> bool:
        return self.parameter_bytes != self.compute_bytes


_PRECISIONS = {
    p.name: p
    for p in (
        Precision("fp32", "fp32", 4, 4),
        Precision("fp16", "fp16", 2, 2),
        Precision("bf16", "bf16", 2, 2),
        Precision("amp-fp16", "fp16", 4, 2),
        Precision("amp-bf16", "bf16", 4, 2),
    )
}
PRECISIONS = tuple(_PRECISIONS)


@dataclass(frozen=True)
class Parameter:
    """A tensor of `elements` that a step trains, or reads as it is (`trained` False: the base of LoRA). `embedding`:
    read by row number."""

    name: str
    elements: int
    embedding: bool = False
    trained: bool = True


STATISTIC_BYTES = 4
STEPS = ("foreach", "loop", "fused")
BLOCK_ELEMENTS = 2048
"""Elements of a block with an fp32 scale of its own (arXiv 2110.02861, section 2.1)."""
MIN_8BIT_ELEMENTS = 4096
"""Tensors with fewer elements keep fp32 states there (`min_8bit_size`)."""
QUANTILES_BYTES = 2 * 256 * 4
"""Two tables of 256 fp32 values, signed and unsigned, shared by all parameters."""
COUNTER_BYTES = 4


@dataclass(frozen=True)
class Optimizer:
    """`moments` states of the parameters' type; `temporaries` copies of a tensor that a step makes for itself;
    `passes` over such tensors that it reads or writes, fused or not."""

    name: str
    step: str
    moments: int
    temporaries: int
    loop_temporaries: int
    passes: int
    fused_passes: int
    eight_bit: bool = False

    def state_bytes(self, parameters: Sequence[Parameter], element_bytes: int) -> int:
        if self.eight_bit:
            # Two states: a byte per element and an fp32 scale per block; small tensors keep fp32.
            scaled = [n for p in parameters if (n := p.elements) >= MIN_8BIT_ELEMENTS]
            fp32 = sum(p.elements for p in parameters if p.elements < MIN_8BIT_ELEMENTS)
            return QUANTILES_BYTES + 2 * (
                sum(n + -(-n // BLOCK_ELEMENTS) * 4 for n in scaled) + 4 * fp32
            )
        # A fused step keeps its counters on the GPU, one fp32 number per parameter.
        counters = (
            COUNTER_BYTES * len(parameters)
            if self.step == "fused" and self.name != "momentum"
            else 0
        )
        total = sum(p.elements for p in parameters)
        return self.moments * total * element_bytes + (counters if self.moments else 0)

    def step_bytes(self, parameters: Sequence[Parameter], element_bytes: int) -> int:
        """Bytes that live within a step alone."""
        if self.step == "fused" or self.eight_bit:
            return 0
        # Tensor by tensor: the temporaries of the largest one. Over lists: those of all at once.
        if self.step == "loop":
            return (
                self.loop_temporaries
                * max((p.elements for p in parameters), default=0)
                * element_bytes
            )
        return self.temporaries * sum(p.elements for p in parameters) * element_bytes

    def moved_bytes(self, parameters: Sequence[Parameter], element_bytes: int) -> int:
        total = sum(p.elements for p in parameters)
        if self.eight_bit:  # parameter in and out, gradient in, both states in and out
            return 3 * total * element_bytes + 2 * self.state_bytes(parameters, element_bytes)
        return (self.fused_passes if self.step == "fused" else self.passes) * total * element_bytes


_ADAM_PASSES = 18
"""lerp 3, multiply 2, addcmul 3, sqrt 2, divide 2, add 2, addcdiv 4; decoupled weight decay 2 more."""
_RULES = {
    "none": (0, 0, 0, 0, 0),
    "sgd": (0, 0, 0, 3, 3),
    "momentum": (1, 0, 0, 8, 5),
    "adam": (2, 1, 2, _ADAM_PASSES, 7),
    "adamw": (2, 1, 2, _ADAM_PASSES + 2, 7),
    "adam8bit": (0, 0, 0, 0, 0),
}
_ALIASES = dict.fromkeys(("amp", "autocast"), "amp-bf16")
_ALIASES |= dict.fromkeys(("sgd+momentum", "sgd-momentum"), "momentum")
_ALIASES |= dict.fromkeys(("adam-8bit", "8bit-adam"), "adam8bit")
OPTIMIZERS = tuple(_RULES)


def _usual(word: str) -> str:
    """The name of a precision or an optimizer by another one."""
    key = _ALIASES.get(word.strip().lower(), word.strip().lower())
    return dtype(key).name if is_dtype(key) else key


def optimizer(name: str, step: str = "foreach") -> Optimizer:
    """The optimizer called `name`, whose step runs over lists of tensors, tensor by tensor, or as one fused kernel."""
    if name == "adam8bit" and step == "loop":
        raise InputError("`step` loop: adam8bit has one kernel a tensor; accepted: foreach, fused")
    return Optimizer(name, step, *_RULES[name], eight_bit=name == "adam8bit")


NORMS = ("layer", "rms", "none")
ACTIVATIONS = ("gelu", "silu", "relu")
POSITIONS = ("learned", "none")
MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20
MAX_VOCABULARY = 1 << 24


@dataclass(frozen=True)
class Decoder:
    """A stack of pre-norm layers: x + out(attention(qkv(norm(x)))), then x + down(activation(up(norm(x))))."""

    layers: int = ask.count("layers", 12, metavar="", high=MAX_LAYERS)
    width: int = ask.count("columns of the residual stream", 768, metavar="", high=MAX_WIDTH)
    heads: int = ask.count(
        "query heads; width / heads is the head dimension", 12, metavar="", high=MAX_WIDTH
    )
    kv_heads: Resolved[int] = ask.count("key/value heads, by default as many", UNSET, metavar="")
    mlp_width: Resolved[int] = ask.count(
        "columns inside the MLP; by default 4 x width, 0 for none",
        UNSET,
        metavar="",
        low=0,
        high=64 * MAX_WIDTH,
    )
    gated: bool = ask.flag("down(activation(gate(x)) * up(x)), three matrices in place of two")
    activation: str = ask.word("between them", ACTIVATIONS, "gelu")
    vocabulary: int = ask.count(
        "tokens; 0: neither embedding nor head, fed with hidden states",
        50257,
        metavar="",
        low=0,
        high=MAX_VOCABULARY,
    )
    tied: bool = ask.flag("the head's matrix is the embedding", True)
    norm: str = ask.word("before attention and MLP", NORMS, "layer")
    positions: str = ask.word("learned: an embedding a position", POSITIONS, "learned")
    bias: bool = ask.flag("linear layers have one; the head has none", True)

    def __post_init__(self) -> None:
        put_checked(self)
        put = object.__setattr__
        put(self, "kv_heads", self.heads if self.kv_heads is None else self.kv_heads)
        put(self, "mlp_width", 4 * self.width if self.mlp_width is None else self.mlp_width)
        # Each must divide the next: width into heads, heads into groups.
        for name, of in (("heads", "width"), ("kv_heads", "heads")):
            part, whole = getattr(self, name), getattr(self, of)
            if part > whole:
                raise InputError(f"`{name}` {part} is out of range; accepted: 1 to {whole}")
            if whole % part:
                raise InputError(
                    f"`{name}` {part} does not divide `{of}` {whole}; accepted: divisors of it"
                )

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def qkv_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def to_dict(self) -> dict[str, object]:
        return plain(
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
        ) | asdict(self)


MATRICES = ("q", "k", "v", "out", "gate", "up", "down")
"""Matrices of a layer that LoRA may adapt."""
MAX_RANK = 1 << 16
MAX_GPUS = 1 << 20
ATTENTIONS = ("naive", "flash")
RECOMPUTE = ("none", "full", "attention")
BACKENDS = ("cuda", "cpu")
MAX_BATCH = 1 << 16
MAX_TOKENS = 1 << 24
FLASH_COLUMNS = 8
"""FlashAttention's kernels take head dimensions that are multiples of this (csrc/flash_attn/flash_api.cpp)."""


@dataclass(frozen=True)
class Setup:
    """How a model is trained. Raises InputError: a value out of range or an unknown word."""

    batch: int = ask.count("sequences", 1, metavar="", high=MAX_BATCH)
    seq_len: int = ask.count("tokens of each", 1024, metavar="", high=MAX_TOKENS)
    attention: str = ask.word(
        "naive: scores, mask, softmax and values as tensors", ATTENTIONS, "flash"
    )
    causal: bool = ask.flag("a token sees no later ones", True)
    precision: str = ask.word(
        "amp: autocast over fp32 parameters", PRECISIONS, "amp-bf16", normal=_usual
    )
    optimizer: str = ask.word("whose states and step", OPTIMIZERS, "adamw", normal=_usual)
    step: str = ask.word(
        "over lists of tensors, tensor by tensor, or as one kernel", STEPS, "foreach"
    )
    recompute: str = ask.word(
        "full: each layer; attention: the N x N part (arXiv 2205.05198, section 5)",
        RECOMPUTE,
        "none",
    )
    backend: str = ask.word("whose kernels' saved statistics and random state", BACKENDS, "cuda")
    accumulate: bool = ask.flag("gradients of an earlier backward are there and are added to")
    master_weights: bool = ask.flag(
        "the optimizer keeps parameters and states in fp32 beside half ones"
    )
    data_parallel: int = ask.count(
        "GPUs that train copies of the model, each on a batch of its own", 1, high=MAX_GPUS
    )
    zero: int = ask.count(
        "shared among these GPUs: 1 optimizer states, 2 and gradients, 3 and parameters "
        "(arXiv 1910.02054)",
        0,
        low=0,
        high=3,
    )
    lora_rank: int = ask.count(
        "columns of LoRA's adapters, with all else frozen; 0 trains all (arXiv 2106.09685)",
        0,
        low=0,
        high=MAX_RANK,
    )
    lora_on: str = ask.text(f"matrices that get an adapter, of {', '.join(MATRICES)}", "q,v")

    def __post_init__(self) -> None:
        put_checked(self)
        optimizer(self.optimizer, self.step)
        for matrix in self.lora_on.split(","):
            if matrix not in MATRICES:
                raise unknown_name("`lora_on`", matrix, MATRICES)
        if self.master_weights and self.number.parameter_bytes > 2:
            why = f"`master_weights`: `precision` {self.precision} keeps parameters in fp32 already"
            raise InputError(f"{why}; accepted: with bf16 or fp16")

    @property
    def adapted(self) -> tuple[str, ...]:
        """Matrices that LoRA adapts; none where everything is trained."""
        return tuple(self.lora_on.split(",")) if self.lora_rank else ()

    @property
    def state_bytes(self) -> int:
        """Bytes of an element of what the optimizer reads and writes."""
        return STATISTIC_BYTES if self.master_weights else self.number.parameter_bytes

    @property
    def tokens(self) -> str:
        return f"{self.batch:,} x {some(self.seq_len, 'token')}"

    @property
    def number(self) -> Precision:
        return _PRECISIONS[self.precision]

    @property
    def rule(self) -> Optimizer:
        return optimizer(self.optimizer, self.step)

    @property
    def fused_kernel(self) -> str:
        """Which fused kernel runs for "flash": FlashAttention's has no fp32, for which CUDA has the memory-efficient
        kernel. NB: on GPUs before cc 8.0 that one runs in fp16 too, with rows of the log-sum-exp padded to 32."""
        return (
            "memory-efficient"
            if self.backend == "cuda" and self.number.compute_bytes == 4
            else "flash"
        )

    def check(self, model: Decoder) -> None:
        """Refuse what PyTorch would not run without another kernel or a padded copy."""
        if self.attention == "flash" and self.backend == "cuda" and model.head_dim % FLASH_COLUMNS:
            raise InputError(
                f"`heads` {model.heads} of `width` {model.width}: head dimension {model.head_dim} is not "
                f"possible with `attention` flash; accepted: multiples of {FLASH_COLUMNS}"
            )
        absent = set() if model.gated else {"gate"}
        if not model.mlp_width:
            absent = {"gate", "up", "down"}
        for matrix in self.adapted:
            if matrix in absent:
                accepted = ", ".join(m for m in MATRICES if m not in absent)
                raise InputError(
                    f"`lora_on` {matrix}: the model has no such matrix; accepted: {accepted}"
                )

    def to_dict(self) -> dict[str, object]:
        return asdict(self)
