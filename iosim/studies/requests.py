"""What studies are asked for: a record each, whose fields say all about themselves.

The command line makes its options of them and `import iosim` its keywords, both with the tables of the kernel's settings
and of the conditions, which are had from here; the study of the same name runs one. Loads nothing heavy, so that a
command line can be parsed, and refused, at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from iosim.base import fields as ask
from iosim.base.errors import InputError
from iosim.base.fields import Kind, about, fields_of, like, put_checked
from iosim.base.records import dataclass, replace
from iosim.base.units import sizes
from iosim.base.words import DEFAULT, ECC_STATES, LAUNCHED_BY_GPU, Method
from iosim.kernel.conditions import CONDITIONS as CONDITIONS
from iosim.kernel.conditions import Conditions as Conditions
from iosim.kernel.overrides import OVERRIDES as OVERRIDES
from iosim.kernel.overrides import Overrides as Overrides
from iosim.problem.fields import BESIDES, FIELDS

if TYPE_CHECKING:
    from iosim.hardware.profile import HardwareProfile as HardwareProfile
    from iosim.kernel.kernel import Kernel as Kernel
    from iosim.problem.attention import AttentionProblem
    from iosim.studies.models.layers import Layers, Model

CONTEXTS = "1k:128k:x2"
QUANTISED_FORMS = ("int4", "int8", "fp8", "mxfp4")
PINNED = (
    "order",
    "heavy_first",
    "fold",
    "section_heads",
    "chiplets",
    "direction",
    "scheduler",
    "cluster",
)
"""Settings that a search of orders keeps where they are given."""
MATRIX_UNITS = ("mma.sync", "wgmma")
DEFAULT_COMPILED = 16
OFFERED = "with --out"


# Records below are frozen and made by keyword. A field is a value with its option (`ask.count`,
# `ask.names`, ...), a field of another table under other words (`like`), or plain: no option.
class Checked:
    """A request whose fields are checked when it is made."""

    def __post_init__(self) -> None:
        put_checked(self)


@dataclass(frozen=True, kw_only=True)
class OfModel:
    model: Model | None = None
    layers: int | None = ask.count("the first N layers of `model`", default_text="all")
    tensor_parallel: int | None = ask.count(
        "GPUs that share the heads of `model`'s layers: numbers are of each",
        metavar="GPUS",
        default_text="1",
    )


@dataclass(frozen=True, kw_only=True)
class DecodeRequest(OfModel):
    """Attention of a model that generates text, on every GPU and with every kernel, over the context's length.

    Sizes that are None are those of the model, or of Llama-3-8B.
    """

    gpu: Sequence[str | HardwareProfile] = ()
    kernel: Sequence[str] | None = None
    batch: Any = ask.counts("sequences: 8 or 1,2,4", 1)
    context: Any = ask.counts("tokens in the cache: 4096, 1k,8k or 1k:128k:x2", CONTEXTS)
    batch_contexts: Any = ask.counts(
        "in place of `batch` and `context`: sequences of these contexts in one launch, or a file"
    )
    heads: int | None = like(FIELDS["heads"], default_text="32")
    kv_heads: int | None = like(FIELDS["kv_heads"], default_text="8; 1 for a latent cache")
    head_dim: int | None = like(FIELDS["head_dim"], default_text="128")
    dtype: str | None = like(FIELDS["dtype"], default_text="bf16")
    layers: int | None = ask.count(
        "attention layers; with `model` the first N of its layers", default_text="32"
    )
    weights: str | None = ask.word(
        "the layers' matrices in few bits, with `model`",
        QUANTISED_FORMS,
        metavar="FORM",
        default_text="as the config says",
    )
    head_dim_v: int | None = like(FIELDS["head_dim_v"])
    window: int | None = like(FIELDS["window"])
    latent_kv: bool = like(FIELDS["latent_kv"], False)
    page_size: int | None = like(FIELDS["page_size"])
    cache_dtype: str | None = like(FIELDS["cache_dtype"])
    shared_prefix: int | None = like(FIELDS["shared_prefix"])
    new_tokens: int = ask.count("query tokens of a sequence in a step", 1)
    append_kv: bool = like(OVERRIDES["append_kv"], False)
    splits: int | None = like(OVERRIDES["splits"])
    split_rule: Sequence[str] | None = ask.names(
        "in place of `kernel`, whose rule splits the keys: fa2, fa3, vllm, sglang, flashinfer"
    )
    launched: str = like(
        CONDITIONS["launched"],
        "alone",
        words=LAUNCHED_BY_GPU,
        help="alone (launches as a profiler times them) or graph (replayed in a CUDA graph)",
    )


@dataclass(frozen=True, kw_only=True)
class WholeRequest(Checked):
    """Whole models: all operators of a prefill and of a step of decoding, or of a step of training."""

    models: Sequence[Model]
    gpu: Sequence[str | HardwareProfile]
    kernel: str = DEFAULT
    batch: int = like(FIELDS["batch"], 1)
    seq_len: Any = ask.counts(
        "tokens of a prompt, or of a sequence to train on: 4096 or 1k:16k:x2",
        default_text="4k; none with `context`",
    )
    context: Any = ask.counts(
        "tokens so far, the new one among them, in a step of decoding; 0 for no such step",
        default_text="those of the prompt",
    )
    dtype: str | None = like(FIELDS["dtype"], default_text="the config's")
    weights: str | None = ask.word(
        "the layers' matrices in few bits",
        QUANTISED_FORMS,
        metavar="FORM",
        default_text="as the config says",
    )
    cache_dtype: str | None = like(FIELDS["cache_dtype"])
    training: bool = ask.flag("a step of training, in place of a prefill and a step of decoding")
    price: Sequence[str] | None = ask.names(
        "dollars per hour of a GPU, for the cost of a million tokens: a100=1.5,h100=2.5",
        metavar="GPU=DOLLARS",
    )
    fused: bool = ask.flag(
        "one launch each for positions, the MLP's activation and the sum before a norm, as serving stacks run them"
    )
    layers: int | None = like(fields_of(OfModel)["layers"], help="the first N layers of each model")
    tensor_parallel: int | None = like(
        fields_of(OfModel)["tensor_parallel"],
        help="GPUs that share heads, MLPs and vocabulary: numbers are of each",
    )


@dataclass(frozen=True, kw_only=True)
class OfProblem(OfModel):
    """Problems: those of `problems`, or what `values` of a problem's fields ask for, with a model or without."""

    problems: Sequence[AttentionProblem] | None = None
    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class LatencyRequest(OfProblem, Checked):
    """Attention calls in serving stacks; the mask is causal where none is named."""

    gpu: Sequence[str | HardwareProfile]
    stack: Sequence[str] = ask.names(
        "vllm, sglang, flashinfer; 'list' says what each runs", ("vllm",), default_text="vllm"
    )
    batch_contexts: Any = ask.counts(
        "decode one token per sequence over these many keys, all in one launch: 1k,4k,32k, or a file"
    )
    cache_write: bool = ask.flag(
        "the write of new K and V to the cache", True, option="--no-cache-write"
    )
    calibration: str | None = ask.file("constants that 'iosim calibrate --times' fitted")
    method: Method | None = like(
        CONDITIONS["method"], help="how HBM bytes are found, as in `predict`", default_text=""
    )
    l2_start: str = like(
        CONDITIONS["l2_start"],
        "warm",
        help="the L2 at the start: cold, or warm as the call before left it",
    )
    clocks: str | float = like(
        CONDITIONS["clocks"], "boost", help="boost, sustained or the SMs' clock in MHz"
    )
    launched: str = like(
        CONDITIONS["launched"],
        "graph",
        words=LAUNCHED_BY_GPU,
        help="graph (call after call from a CUDA graph) or alone (launches as a profiler times them)",
    )
    ecc: str = like(CONDITIONS["ecc"], ECC_STATES[0])


@dataclass(frozen=True, kw_only=True)
class RingRequest(OfProblem):
    """One attention over several GPUs, by several schedules of chunks."""

    gpu: str | HardwareProfile
    kernel: str | Kernel = DEFAULT
    num_gpus: int = ask.count("number of GPUs", 8, metavar="P")
    link: str | float = ask.text(
        "nvlink, pcie, ib (400 Gb/s), ib-100g, ib-200g, or GB/s in one direction",
        "nvlink",
        metavar="LINK",
    )
    gpus_per_node: int | None = ask.count("GPUs joined by `link`; needs `network`")
    network: str | float | None = ask.text("link between nodes, as `link`", metavar="LINK")
    shared_network: bool = ask.flag("one network port a node, not one a GPU")
    overlap: bool = ask.flag(
        "messages beside the computations of their step", True, option="--no-overlap"
    )
    schedule: Sequence[str] | None = ask.names(
        "ring, vanilla, balanced, zigzag, striped, usp, ulysses, all-gather, megatron, rsa",
        default_text="all that can run",
    )
    clocks: str | float = like(
        CONDITIONS["clocks"],
        "sustained",
        help="sustained (calls for seconds), boost or the SMs' clock in MHz",
    )
    launched: str = like(
        CONDITIONS["launched"],
        "alone",
        words=LAUNCHED_BY_GPU,
        help="alone (from Python, where launching messages takes the processor time) or graph (from a CUDA graph)",
    )
    layers: int | None = ask.count(
        "layers that keep Q, K, V, O for the backward, in memory; the first N of `model`'s",
        default_text="1, or all of the model's",
    )


@dataclass(frozen=True, kw_only=True)
class TrainRequest(Checked):
    """A training step on one GPU. Sizes and words that are None are those of the model, or of GPT-2 small."""

    gpu: str | HardwareProfile
    kernel: str | None = None
    # Sizes of a model reach a training step as plain values: they fill fields that stay None.
    of_model: Mapping[str, Any] | None = None
    """The model's own sizes and words, by the names of these fields."""
    seq_len: Any = like(
        FIELDS["seq_q"],
        None,
        kind=Kind.SIZES,
        help="tokens",
        metavar="N,...",
        default_text="1024; with `frontier` 2k:16k:2k",
    )
    batch: Any = ask.counts("sequences", default_text="1")
    layers: Any = ask.counts("layers", default_text="12")
    width: Any = ask.counts("columns of the residual stream", default_text="768")
    heads: int | None = like(FIELDS["heads"], default_text="width / 64")
    kv_heads: int | None = like(FIELDS["kv_heads"])
    causal: bool = ask.flag("keep keys up to the query's own position", True)
    mlp_ratio: float | None = ask.number(
        "columns inside the MLP over width", low=0, high=64, metavar="R", default_text="4"
    )
    mlp_width: int | None = ask.count("columns inside the MLP; 0 for none", low=0)
    gated: bool = ask.flag("gated MLP: three matrices")
    activation: str | None = ask.text("gelu, silu or relu", default_text="gelu")
    vocabulary: int | None = ask.count(
        "tokens; 0 for no embedding and head", low=0, default_text="50257"
    )
    untied: bool = ask.flag("the head has a matrix of its own")
    norm: str | None = ask.text("layer, rms or none", default_text="layer")
    positions: str | None = ask.text("learned or none", default_text="learned")
    linear_bias: bool = ask.flag("a bias in linear layers", True, option="--no-linear-bias")
    attention: str = ask.text("naive (eager) or flash", "flash")
    precision: str | None = ask.text(
        "fp32, fp16, bf16, amp-fp16 or amp-bf16",
        default_text="amp-bf16; amp-fp16 where the GPU's tensor cores do not take bf16",
    )
    optimizer: str = ask.text("none, sgd, momentum, adam, adamw or adam8bit", "adamw")
    step: str = ask.text("how the optimizer runs: foreach, loop or fused", "foreach")
    recompute: str = ask.text("none, full (each layer) or attention", "none")
    backend: str = ask.text("whose kernels' saved tensors: cuda or cpu (no times)", "cuda")
    accumulate_gradients: bool = ask.flag("gradients of an earlier backward are there")
    master_weights: bool = ask.flag(
        "fp32 copies of bf16 or fp16 parameters, and states in fp32, as mixed-precision trainers keep"
    )
    lora_rank: int = ask.count(
        "train LoRA's adapters of so many columns alone; all else is frozen",
        0,
        low=0,
        default_text="0, which trains everything",
    )
    lora_on: str = ask.text(
        "matrices with an adapter, of q, k, v, out, gate, up and down", "q,v", metavar="MATRIX,..."
    )
    data_parallel: int = ask.count(
        "GPUs that train copies of the model; batch and memory are those of each", 1
    )
    zero: int = ask.count(
        "ZeRO's stage, what these GPUs share out: 1 optimizer states, 2 gradients, too, 3 parameters, too",
        0,
        low=0,
        high=3,
    )
    reserve: int = ask.count(
        "bytes of memory that tensors cannot use, such as 512m",
        0,
        low=0,
        high=1 << 50,
        metavar="BYTES",
    )


@dataclass(frozen=True, kw_only=True)
class PredictRequest(OfProblem, Conditions):
    """Every problem, of a model all of its layers, on every GPU with every kernel."""

    gpu: Sequence[str | HardwareProfile]
    kernel: Sequence[str | Kernel]
    overrides: Overrides | None = None


@dataclass(frozen=True, kw_only=True)
class AgainstRequest(PredictRequest):
    """Predictions, held against earlier ones where there are some."""

    against: Any = ask.file(
        "what 'iosim predict --format json' wrote earlier: what changed since, by level, launch and tensor, and why"
    )
    fail_above: Sequence[str] | None = ask.names(
        "how much more of a level (hbm, l2, time) than `against` has is a failure, exit code 1: hbm=5%,time=10%; less "
        "never fails",
        metavar="LEVEL=SHARE,...",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # A limit without anything to hold against would pass in silence.
        if self.fail_above is not None and self.against is None:
            raise InputError(
                f"`fail_above` {','.join(self.fail_above)} needs `against`; accepted: both"
            )


@dataclass(frozen=True, kw_only=True)
class ExplainRequest(PredictRequest):
    """Why calls move what they move."""

    time: bool = ask.flag("where the time goes, launch by launch, in place of the bytes")
    terms: bool = ask.flag(
        "with `time`: what each term of the model is worth, with its constants and its place"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.terms and not self.time:
            raise InputError("`terms` needs `time`; accepted: both")


@dataclass(frozen=True, kw_only=True)
class TraceRequest(PredictRequest):
    """What happens inside the replay of calls."""

    launch: str | None = ask.name("trace this launch of the chain alone", default_text="all")
    bins: int = ask.count("time bins", 200)


@dataclass(frozen=True, kw_only=True)
class ExploreRequest(Checked):
    """What the lists of the explorer's page offer, and where it goes."""

    gpu: Sequence[str] = ask.names(
        "GPUs to choose from",
        ("a100", "h100", "h200", "b200", "l40s"),
        default_text=f"all; {OFFERED} a100,h100,h200,b200,l40s",
    )
    kernel: Sequence[str] = ask.names(
        "kernels to choose from; flash takes tiles and orders",
        ("fa2", "fa3", "fa4", "cudnn", "cutlass", "flashinfer", "triton", "flash"),
        default_text=f"all; {OFFERED} fa2,fa3,fa4,cudnn,cutlass,flashinfer,triton,flash",
    )
    seq_len: Any = like(
        FIELDS["seq_q"], "512:64k:x2", kind=Kind.SIZES, help="tokens", metavar="N,..."
    )
    heads: Sequence[str] = ask.names(
        "heads, or heads/key-value heads",
        ("32/8", "16"),
        metavar="N[/K],...",
        default_text="32/8,16",
    )
    head_dim: Any = like(FIELDS["head_dim"], "128,64", kind=Kind.SIZES, metavar="D,...")
    out: Any = ask.file(
        "write the page into this folder, with all that these lists offer",
        option=None,
        metavar="DIR",
    )
    runtime: Any = ask.file(
        "with --out: a folder of Pyodide, with which the page computes every answer itself",
        metavar="DIR",
    )
    force: bool = ask.flag("with --out: replace an index.html that is no explorer's")
    port: int = ask.count(
        "of this machine, where the page is served; 0 for a free one", 8642, low=0, high=65535
    )

    @property
    def lengths(self) -> list[int]:
        return sizes(self.seq_len, "seq_q")

    @property
    def dims(self) -> list[int]:
        return sizes(self.head_dim, "head_dim")

    @property
    def head_counts(self) -> list[tuple[int, int]]:
        """Heads and key/value heads. Raises InputError: a text that is no such pair."""
        # "32/8" is 32 query heads on 8 key/value heads, "16" as many of both.
        pairs = (text.partition("/") for text in self.heads)
        try:
            return [(int(heads), int(kv or heads)) for heads, _, kv in pairs]
        except ValueError:
            raise InputError(
                f"`heads` {','.join(self.heads)}; accepted: numbers such as 16, or 32/8"
            ) from None


@dataclass(frozen=True, kw_only=True)
class SweepRequest(OfModel):
    """A row for every combination of values, for the rows of a file, or for the layers of a model."""

    problems: Any = ask.name(
        "a CSV or Parquet file, a row per problem, with columns named as options: seq_len, heads, kernel, gpu, ...; "
        "each row with every combination of the options given",
        metavar="FILE",
    )
    values: Mapping[str, Any]
    """Values of fields and settings, `gpu` and `kernel`, each one or several."""
    l2_start: str = like(CONDITIONS["l2_start"], "cold")
    method: Method | None = like(
        CONDITIONS["method"],
        default_text="replay where that takes seconds; bounds and capacity take a million rows in seconds and give no "
        "times",
    )
    out: Any = ask.file("a .csv or .parquet file, which appears with the last row", option=None)
    jobs: int | None = ask.count("processes", default_text="one a core where the rows are worth it")
    dask: str | None = ask.name(
        "scheduler of a Dask cluster, such as tcp://host:8786, whose workers do the work",
        metavar="ADDRESS",
    )
    fresh: bool = ask.flag("begin anew where --out was begun")


@dataclass(frozen=True, kw_only=True)
class CompareRequest(OfModel):
    problems: Sequence[AttentionProblem] = ()
    kernel: Sequence[str] | None = None
    gpu: Sequence[str]
    baseline: str | None = ask.name(
        "what ratios are to",
        metavar="KERNEL[@GPU]",
        default_text="the first kernel over N x N tensors, on each row's GPU",
    )
    l2_start: str = like(CONDITIONS["l2_start"], "cold")
    method: Method | None = like(CONDITIONS["method"])


def check_per(per: str | None, baseline: str | None, price: object) -> None:
    """Refuses what only one of the two comparisons takes. Raises InputError."""
    if per is None and price is not None:
        raise InputError("`price` goes with `per`, which is not given; accepted: both")
    if per is not None and baseline is not None:
        raise InputError(
            f"`baseline` {baseline} contradicts `per`, which ranks GPUs; accepted: one of them"
        )


@dataclass(frozen=True, kw_only=True)
class ChoiceRequest(OfProblem, Checked):
    """GPUs, each with its best kernel, ranked by one quantity."""

    gpu: Sequence[str]
    kernel: Sequence[str] | None = None
    per: str = ask.word(
        "in place of the table by level, rank GPUs, each with its best kernel: by tokens per second, or by joules or "
        "dollars of a token",
        ("token", "joule", "dollar"),
        metavar="WHAT",
    )
    price: Sequence[str] | None = ask.names(
        "dollars per hour of a GPU, with `per`: a100=1.5,h100=2.5", metavar="GPU=DOLLARS"
    )
    l2_start: str = like(CONDITIONS["l2_start"], "cold")
    method: Method | None = like(CONDITIONS["method"])


@dataclass(frozen=True, kw_only=True)
class TilesRequest(OfModel):
    """Tiles for a problem, ranked, or one of them."""

    problem: AttentionProblem
    gpu: str | HardwareProfile
    kind: Layers | None = None
    """The layers of a model whose problem it is."""
    tile: Sequence[tuple[int, int]] | None = like(
        OVERRIDES["tile"],
        help="only these tiles, such as 96x48: whether each fits, what it is short of, its bytes and rank, and the "
        "nearest that fits",
    )
    kernel: str | None = ask.name(
        "tiles of this library kernel, which keeps its other settings, such as fa2",
        default_text="iosim's flash",
    )
    warps: int | None = like(OVERRIDES["warps"])
    stages: int | None = like(OVERRIDES["stages"])
    matrix_unit: str = ask.word(
        "what computes the products: mma.sync, or wgmma on cc 9.0",
        MATRIX_UNITS,
        MATRIX_UNITS[0],
        metavar="UNIT",
    )
    library: bool = ask.flag(
        "whether the library kernels with their own tiles are predicted, too", True, option=None
    )
    compile: int | None = ask.count(
        "compile the first N tiles of which no build is recorded, and rank them with what the compiler says: nvcc, or "
        f"Triton with --triton; without a number {DEFAULT_COMPILED}",
        bare=DEFAULT_COMPILED,
    )


def _pinned(name: str) -> Any:
    return like(OVERRIDES[name], help=f"keep this one: {OVERRIDES[name].help}")


@dataclass(frozen=True, kw_only=True)
class OrdersRequest(OfModel):
    problems: Sequence[AttentionProblem]
    kernel: str | Kernel
    gpu: str | HardwareProfile
    counts: Sequence[float] | None = None
    """How many layers of a model each problem stands for."""
    title: str = ""
    """The model's title; empty without a model."""
    weights: Sequence[float] | None = about(
        None,
        Kind.NUMBERS,
        "how often each of several problems is called: one order for all of them",
        metavar="W,...",
        default_text="once; with a model as often as it has such layers",
    )
    tile: Sequence[tuple[int, int]] | None = like(
        OVERRIDES["tile"], help="tiles to try beside the kernel's own, such as 128x64,64x64"
    )
    order: str | None = _pinned("order")
    heavy_first: bool | None = _pinned("heavy_first")
    fold: bool | None = _pinned("fold")
    section_heads: int | None = _pinned("section_heads")
    chiplets: int | None = _pinned("chiplets")
    direction: str | None = _pinned("direction")
    scheduler: str | None = _pinned("scheduler")
    cluster: int | None = _pinned("cluster")
    l2_start: str = like(CONDITIONS["l2_start"], "cold")

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", ORDERS["weights"].check(self.weights))


@dataclass(frozen=True, kw_only=True)
class ClaimRequest:
    """Numbers from elsewhere, and what they are of."""

    problem: AttentionProblem
    kernel: str
    gpu: str | HardwareProfile
    overrides: Overrides | None = None
    hbm: str | None = ask.name(
        "bytes that are said to move between HBM and the L2, such as 4.3GB", metavar="AMOUNT"
    )
    l2: str | None = ask.name(
        "bytes that are said to move between the L2 and the SMs, such as 2.2GB", metavar="AMOUNT"
    )
    time: str | None = ask.name("time that a call is said to take, such as 1.4ms", metavar="AMOUNT")
    flops: str | None = ask.name(
        "operations that a call is said to take, such as 137GFLOP", metavar="AMOUNT"
    )
    ratio: str | None = ask.name(
        "how many times less than naive attention, such as 9x", metavar="AMOUNT"
    )
    tflops: str | None = ask.name(
        "speed that a call is said to reach, such as 230TFLOP/s", metavar="AMOUNT"
    )
    mfu: str | None = ask.name(
        "share of the GPU's tensor rate that it is said to reach, such as 35%", metavar="AMOUNT"
    )
    bandwidth: str | None = ask.name(
        "bandwidth that it is said to draw from HBM, such as 1.5TB/s", metavar="AMOUNT"
    )
    tolerance: str | float | None = ask.text(
        "how far a count may be from it, such as 2%",
        metavar="SHARE",
        default_text="1 %, or half a unit of its last digit up to 5 %",
    )
    layers: int | None = ask.count("layers of the model, where the number may be of all of them")
    ecc: str = like(CONDITIONS["ecc"], ECC_STATES[0])


SIZES = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v")
SYMBOLS = (*SIZES, "window", "window_right", "offset", "splits")
"""Fields of the problem and the kernel that are symbols of a formula."""
CHOICES = (
    "offset",
    "dropout",
    "passes",
    "layout",
    "window",
    "window_right",
    "mask_block",
    "mask_stride",
    "global_tokens",
    "mask_file",
    "bias",
    "bias_shared",
    "bias_dtype",
    "bias_grad",
    "key_padding",
    "sinks",
    "mask_storage",
)
"""Fields of the problem that decide which formula it is."""
_OPEN = (*SIZES, "dtype", "mask", "splits", "tile")
# Defaults are taken out: what nobody gives stays a symbol.
FORMULA = {
    name: replace({**FIELDS, **OVERRIDES}[name], default=None, usual=None, default_text="")
    for name in _OPEN
}
FORMULA |= {name: FIELDS[name] for name in CHOICES} | {"causal": BESIDES["causal"]}
"""What a formula is asked for with, field by field; sizes that are not given stay symbols."""


@dataclass(frozen=True, kw_only=True)
class CodeRequest(Conditions):
    """One launch of a kernel that is known by its code."""

    code: Any = ask.file(
        "a kernel's code in place of a name: a cubin with its PTX beside it, PTX, a fatbin, an object, Triton's cache",
        metavar="FILE",
    )
    entry: str | None = ask.name("the kernel of `code`, where it holds several")
    grid: str | Sequence[int] | None = ask.text(
        "CTAs of its launch along x, y and z", None, metavar="X,Y,Z"
    )
    block: str | Sequence[int] | None = ask.text(
        "threads of a CTA along x, y and z",
        None,
        metavar="X,Y,Z",
        default_text="what its PTX requires",
    )
    arg: Any = ask.names(
        "its arguments in order: a number, TENSOR(shape,dtype), or VALUES(dtype,numbers) where numbers in memory "
        "decide addresses",
        metavar="NAME=VALUE",
    )
    shared_bytes: int | None = ask.count(
        "shared memory that the launch gives a CTA beside what the code declares",
        low=0,
        metavar="BYTES",
        default_text="none",
    )
    gpu: str | HardwareProfile = ""


# The tables of fields of which parsers, keywords and schemas are made.
OF_MODEL, DECODE, LATENCY, RING, TRAIN, WHOLE = map(
    fields_of, (OfModel, DecodeRequest, LatencyRequest, RingRequest, TrainRequest, WholeRequest)
)
AGAINST, EXPLAIN, TRACE, SWEEP = map(
    fields_of, (AgainstRequest, ExplainRequest, TraceRequest, SweepRequest)
)
COMPARE, CHOICE = map(fields_of, (CompareRequest, ChoiceRequest))
TILES, ORDERS, CLAIM = map(fields_of, (TilesRequest, OrdersRequest, ClaimRequest))
EXPLORE = fields_of(ExploreRequest)
CODE = fields_of(CodeRequest)
CLAIMS: Mapping[str, str] = {
    "hbm": "4.3GB",
    "l2": "2.2GB",
    "time": "1.4ms",
    "flops": "137GFLOP",
    "ratio": "9x",
    "tflops": "230TFLOP/s",
    "mfu": "35%",
    "bandwidth": "1.5TB/s",
}
"""Quantities that are claimed, with an example each."""
