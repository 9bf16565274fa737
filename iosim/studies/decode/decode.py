"""Attention's share of a decoding step: bytes and time per generated token over the context's length.

A step runs the attention of every layer once, over a cache that holds `context` tokens of each sequence, the new ones
included. Projections, feed-forward layers and their weights are no part of it: the rates are bounds that attention
alone sets. Each layer has a cache of its own, so each call starts with none of it in L2. Each kind of a model's layers
has its own problem: a window or a chunk bounds what its cache keeps, MLA's holds one latent vector a token, and a
sparse layer reads the keys that it picks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.fields import whole
from iosim.base.files import read_text
from iosim.base.records import dataclass, plain, replace
from iosim.base.words import DEFAULT, WAYS, Level, Way
from iosim.catalog.algorithms.cascade import SHARED
from iosim.catalog.algorithms.states import STATE
from iosim.catalog.libraries import Overrides, split_alike
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.conditions import ALONE, Conditions
from iosim.kernel.launch import LaunchRole
from iosim.kernel.traffic import CHECK_BITS, FOREIGN
from iosim.prediction.many import Request, predict_many
from iosim.prediction.result import Prediction, method_of
from iosim.problem.asked import lengths
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import MAX_TOKENS
from iosim.studies.decode.picking import Picking, picking, picks
from iosim.studies.models.asked import LayerCall
from iosim.studies.models.layers import LayerKind, Model, index_token_bytes

MOST_CONTEXT = MAX_TOKENS
MAX_LAYERS = 10_000
MAX_SEQUENCES = 65_536
MAX_FILE_BYTES = 1_000_000


@dataclass(frozen=True)
class ModelShape:
    """The attention of a decoder. `heads`, `kv_heads`, `head_dim`, `head_dim_v`, `dtype`, `latent_kv`, `page_size`: as
    in `AttentionProblem`. `layers`: attention layers, all alike. `window`: keys kept before a query; None for all."""

    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    head_dim_v: int | None = None
    layers: int = 32
    dtype: str = "bf16"
    latent_kv: bool = False
    page_size: int | None = None
    window: int | None = None
    kind: LayerKind | None = None
    """Kind of a model's layers, in place of the sizes above."""
    fields: tuple[tuple[str, Any], ...] = ()
    """(name, value) of the problem's other fields."""
    contexts: tuple[int, ...] = ()
    """Keys of each sequence, where they differ and all are in one launch."""

    def __post_init__(self) -> None:
        whole("layers", self.layers, 1, MAX_LAYERS)

    def problem(self, batch: int, context: int, new_tokens: int = 1) -> AttentionProblem:
        """One layer's call: `new_tokens` queries a sequence against `context` keys, the queries' own among them. Raises
        InputError: no keys, fewer than new tokens, or sizes out of range."""
        if context < 1:
            raise InputError(f"`context` {context} is out of range; accepted: 1 or more tokens")
        if not 1 <= new_tokens <= context:
            raise InputError(
                f"`new_tokens` {new_tokens} is out of range; accepted: 1 to {context} (the context)"
            )
        fields: dict[str, Any] = dict(self.fields)
        if self.kind is not None:
            latent = self.kind.latent is not None
            return self.kind.problem(new_tokens, context, batch=batch, latent_kv=latent, **fields)
        mask, sequences = "causal" if self.window is None else "window", len(self.contexts)
        lengths: dict[str, Any] = {"batch": batch, "seq_q": new_tokens, "seq_k": context}
        # Sequences of different lengths lie packed in one call: their lengths take the place of batch.
        if sequences:
            mask = "none" if self.window is None and new_tokens == 1 else mask
            lengths = {"seq_lens": (new_tokens,) * sequences, "seq_lens_k": self.contexts}
        return AttentionProblem(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim_v,
            dtype=self.dtype,
            mask=mask,
            window=self.window,
            latent_kv=self.latent_kv,
            page_size=self.page_size,
            **lengths,
            **fields,
        )

    def cache_bytes(self, batch: int, context: int, prediction: Prediction) -> int:
        """Bytes of all layers' cache, of whole pages where there are pages, or of their states."""
        p, tensors = prediction.problem, prediction.chain.tensors
        page, shared = p.page_size or 1, p.shared_prefix or 0
        if self.kind is not None:
            per_sequence, alike = (
                self.kind.sequence_bytes(tokens, p.dtype, p.cache_dtype, page) if tokens else 0
                for tokens in (context, shared)
            )
            # A shared prefix is stored once, not per sequence.
            return self.layers * (batch * per_sequence - (batch - 1) * alike)
        if self.contexts:
            # Whole pages per sequence, less the prefix's, which all but one share.
            rows = sum(
                -(-keys // page) * page for keys in self.contexts
            ) - shared // page * page * (batch - 1)
            width = p.head_dim + (0 if p.latent_kv else p.head_dim_v)
            return rows * p.kv_heads * width * p.cache_type.bytes * self.layers
        cached = (STATE,) if STATE in tensors else ("K", "V", f"K_{SHARED}", f"V_{SHARED}")
        return sum(tensors[n].allocated_bytes for n in cached if n in tensors) * self.layers


@dataclass(frozen=True)
class DecodePoint:
    """One context length on one GPU: `prediction` is of one layer's call; the rest is of all layers, per token. Bytes
    and seconds "per token" are those of a step divided by the tokens that it generates, batch x new_tokens. Of a model
    there is a point for each of its `kinds` of layers, and shape and prediction are those of the kind that takes
    longest."""

    shape: ModelShape
    batch: int
    context: int
    new_tokens: int
    prediction: Prediction
    model: Model | None = None
    kinds: tuple[DecodePoint, ...] = ()
    picking: Picking | None = None

    @classmethod
    def of(cls, model: Model, kinds: tuple[DecodePoint, ...], pays_from: int | None) -> DecodePoint:
        """All layers of a model, with what its indexer costs and saves, where it has one."""
        indexed = (
            picking(p.prediction, p.shape.layers, pays_from) for p in kinds if picks(p.prediction)
        )
        longest = max(kinds, key=lambda kind: kind.step_s)
        return replace(longest, model=model, kinds=kinds, picking=next(indexed, None))

    @property
    def parts(self) -> tuple[DecodePoint, ...]:
        """The points of one kind of layer each."""
        return self.kinds or (self,)

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """What the numbers rest on."""
        return tuple(part.prediction for part in self.parts)

    @property
    def kernel_name(self) -> str:
        """The kernels, in the order of the layers."""
        return ", ".join(dict.fromkeys(p.kernel.name for p in self.predictions))

    @property
    def tokens(self) -> int:
        """Tokens that one step generates."""
        return self.batch * self.new_tokens

    @property
    def step_s(self) -> float:
        """Seconds of all layers' attention in one step."""
        return math.fsum(part.prediction.time.total_s * part.shape.layers for part in self.parts)

    @property
    def cache_bytes(self) -> int:
        """Bytes of all layers' cache, whole pages."""
        return sum(
            part.shape.cache_bytes(self.batch, self.context, part.prediction) for part in self.parts
        )

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of the model's weights; None where there is no model, or they are not known."""
        return None if self.model is None else self.model.weight_bytes

    @property
    def fits(self) -> bool | None:
        """True where the cache fits in the GPU's memory, with the weights where they are known; None where the memory's
        size is not."""
        memory = self.prediction.profile.usable_memory_bytes
        return None if memory is None else self.cache_bytes + (self.weight_bytes or 0) <= memory

    @property
    def longest_context(self) -> int | None:
        """Tokens of context with which the cache fits in the GPU's memory beside the weights, where they are known; 0
        for none, None where the memory's size is not known, or sequences differ."""
        memory = self.prediction.profile.usable_memory_bytes
        if memory is None or self.shape.contexts:
            return None
        # Bisection: the cache grows with the context, and pages and windows bend the curve.
        fitting, beyond = 0, MOST_CONTEXT + 1
        while beyond - fitting > 1:
            middle = (fitting + beyond) // 2
            taken = sum(part.cache_at(middle) for part in self.parts) + (self.weight_bytes or 0)
            fitting, beyond = (middle, beyond) if taken <= memory else (fitting, middle)
        return fitting

    def cache_at(self, context: int) -> int:
        """Bytes of all layers' cache of one kind at another context."""
        if self.shape.kind is not None:
            return self.shape.cache_bytes(self.batch, context, self.prediction)
        cache = self.shape.cache_bytes(self.batch, self.context, self.prediction)
        return cache if STATE in self.prediction.chain.tensors else cache * context // self.context

    def per_token(self, level: Level, direction: Way | None = None) -> float | None:
        """Bytes at `level` a generated token; None for HBM where only bounds are known. Dirty lines of others that a
        call drives out of a flushed L2 are left out: there is no flush between layers."""
        if level == "hbm" and not all(p.hbm_known for p in self.predictions):
            return None
        token_bytes = 0.0
        for part in self.parts:
            traffic = part.prediction.traffic
            # In a model the layer before left its own lines: what a flush would write back is not this
            # call's.
            call_bytes = traffic.total(level, direction) - traffic.total(
                level, direction, tensor=FOREIGN
            )
            token_bytes += float(call_bytes) * part.shape.layers / self.tokens
        return token_bytes

    @property
    def check_bits_read(self) -> float:
        """Bytes that a step reads of ECC's check bits, where those lie in the same memory."""
        return math.fsum(
            float(part.prediction.traffic.total("hbm", "read", tensor=CHECK_BITS))
            * part.shape.layers
            for part in self.parts
        )

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second, all sequences together, if attention were all there is."""
        return self.tokens / self.step_s

    @property
    def bound_tokens_per_s(self) -> float | None:
        """Tokens per second if a step took only as long as HBM needs to deliver the keys and values that its masks keep,
        at the rate of reads that the time has, too."""
        seconds_per_byte = self.prediction.profile.hbm_seconds_per_byte()
        return (
            None
            if seconds_per_byte is None
            else self.tokens
            / (seconds_per_byte[0] * sum(part._kept_read_bytes for part in self.parts))
        )

    @property
    def _kept_read_bytes(self) -> int:
        """Bytes of the keys and values that the masks of one kind of layer keep, and of the keys that its indexer
        scores; or of its states."""
        problem, tensors = self.prediction.problem, self.prediction.chain.tensors
        if STATE in tensors:
            return tensors[STATE].bytes * self.shape.layers
        # Picked keys once per key/value head, and the index keys of all tokens, which are scored.
        if problem.gathers:
            index = (
                problem.scored_keys * index_token_bytes(problem.index_dim)
                if problem.index_heads
                else 0
            )
            picked = problem.attended_keys * problem.latent_row_bytes
            return problem.batch * (problem.kv_heads * picked + index) * self.shape.layers
        width = problem.head_dim + (0 if problem.latent_kv else problem.head_dim_v)
        # A window and the new tokens: the first of them sees W back, the last its own place.
        windowed = None if problem.window is None else problem.window + self.new_tokens
        keys = (
            problem.keys_in_memory
            if windowed is None
            else problem.batch * min(problem.seq_k, windowed)
        )
        return problem.kv_heads * keys * width * problem.cache_type.bytes * self.shape.layers

    @property
    def sequences(self) -> list[dict[str, int]]:
        """What a launch does for its sequences, over all heads: by context, in ascending order; nothing of kernels
        whose scores pass through memory. FlashAttention-2 gives every sequence as many splits; others' splits have one
        length, so that a longer sequence has more of them."""
        p = self.prediction
        main = p.chain.launch_of(LaunchRole.MAIN)
        if main is None:
            return []
        domain = main.domain
        shared = p.problem.shared_prefix or 0
        counts = Counter((queries, keys - shared) for queries, keys in p.problem.sequences)
        most_blocks = max(-(-keys // domain.block_k) for _, keys in counts)
        # All kernels but FlashAttention-2: the longest sequence has all splits, and their length is
        # everybody's.
        blocks_each = -(-most_blocks // domain.splits)
        rows = []
        for (queries, keys), sequences in sorted(counts.items(), key=lambda item: item[0][1]):
            blocks = -(-keys // domain.block_k)
            per = -(-blocks // domain.splits) if split_alike(p.kernel.name) else blocks_each
            splits = -(-blocks // per)
            tiles = sequences * domain.heads * -(-queries * domain.pack // domain.block_q) * splits
            rows.append(
                {
                    "context": keys,
                    "sequences": sequences,
                    "splits": splits,
                    "keys_per_split": min(keys, per * domain.block_k),
                    "work_tiles": tiles,
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """One entry of `points` in the JSON of `iosim decode`; of a model with an entry of each kind of layer."""
        p = self.prediction
        whole = {"profile": p.profile.name} | plain(
            kernel=self.kernel_name,
            batch=self.batch,
            context=self.context,
            new_tokens=self.new_tokens,
        )
        whole |= {
            "layers": sum(part.shape.layers for part in self.parts),
            "splits": p.kernel.splits,
        }
        whole |= {"packed": max(x.domain.pack for x in p.chain.launches)} | plain(
            cache_bytes=self.cache_bytes, weight_bytes=self.weight_bytes, fits=self.fits
        )
        levels: tuple[Level, ...] = ("hbm", "l2")
        whole |= {
            f"{level}_{way}_bytes_per_token": self.per_token(level, way)
            for level in levels
            for way in WAYS
        }
        whole |= {
            "method": method_of(prediction.method for prediction in self.predictions),
            "step_s": self.step_s,
        }
        whole |= {"s_per_token": self.step_s / self.tokens} | plain(
            tokens_per_s=self.tokens_per_s, bound_tokens_per_s=self.bound_tokens_per_s
        )
        whole |= {"bound_by": p.time.bound_by, "sequences": self.sequences} | plain(
            problem=p.problem, notes=p.notes
        )
        if self.picking is not None:
            whole["picking"] = self.picking.to_dict()
        if self.model is None:
            return whole
        kinds = [
            {"layer": kind.name} | part.to_dict()
            for kind, part in zip(self.model.all_kinds, self.kinds, strict=True)
        ]
        return {
            "model": self.model.name,
            "tensor_parallel": self.model.tensor_parallel,
            **whole,
            "kinds": kinds,
        }


def decode_point(
    shape: ModelShape,
    context: int,
    gpu: str | HardwareProfile = "a100",
    kernel: str = DEFAULT,
    **step: Any,
) -> DecodePoint:
    """Attention of one decoding step, as `sweep` has it. `context`: tokens in the cache at the end of the step, the new
    ones included."""
    return next(sweep(shape, [context], gpu, kernel, **step))


def sweep(
    shape: ModelShape,
    contexts: Sequence[int],
    gpu: str | HardwareProfile = "a100",
    kernel: str = DEFAULT,
    *,
    batch: int = 1,
    new_tokens: int = 1,
    overrides: Overrides | None = None,
    conditions: Conditions = ALONE,
) -> Iterator[DecodePoint]:
    """A decoding step at every context, predicted side by side. `batch`: sequences, all of that context; `new_tokens`
    that each checks or generates in a step (more than one with speculative decoding). Raises InputError: values that
    make no sense, or a kernel that cannot run the shape on that GPU."""
    profile, batch = load_profile(gpu), whole("batch", batch, 1)
    problems = [shape.problem(batch, context, new_tokens) for context in contexts]
    # Calls of a model run through its kind, which chooses kernel and form (MLA's absorbed one).
    how: dict[str, Any] = {"method": conditions.method, "launched": conditions.launched}
    kind, calls = shape.kind, zip(contexts, problems, strict=True)
    requests = [
        Request(problem, kernel, profile, overrides, **how)
        if kind is None
        else LayerCall(kind, new_tokens, context, problem).request(
            kernel, profile, overrides, **how
        )
        for context, problem in calls
    ]
    for context, prediction in zip(contexts, predict_many(requests), strict=True):
        yield DecodePoint(shape, batch, context, new_tokens, prediction)


def read_contexts(contexts: str | Sequence[int | str], beside: Mapping[str, Any]) -> list[int]:
    """Context lengths from numbers, a text such as 1k,4k,32k, or a file with a number or more a line. Raises
    InputError: no such file, no numbers, too many, or something `beside` them that says lengths, too."""
    for name, value in beside.items():
        text_of_value = ",".join(map(str, value)) if isinstance(value, list) else value
        raise InputError(
            f"`{name}` {text_of_value} contradicts `batch_contexts`, which says the sequences; give one of them"
        )
    words, accepted = contexts, "lengths such as 1k,4k, or a file of them"
    if isinstance(contexts, str) and (
        "/" in contexts or contexts.lower().endswith((".txt", ".csv"))
    ):
        text = read_text(contexts, f"`batch_contexts` '{contexts}'", accepted, MAX_FILE_BYTES)
        words = text.replace(",", " ").split()
    tokens = lengths(words, "batch_contexts")
    if not 1 <= len(tokens) <= MAX_SEQUENCES:
        raise InputError(
            f"`batch_contexts` holds {len(tokens)} lengths; accepted: 1 to {MAX_SEQUENCES}"
        )
    if min(tokens) < 1:
        raise InputError(
            f"`batch_contexts` {min(tokens)} is out of range; accepted: 1 or more tokens"
        )
    return tokens


def in_one_launch(
    shape: ModelShape, contexts: Sequence[int], new_tokens: int, overrides: Overrides
) -> ModelShape:
    """A step of sequences with these contexts in one launch. Raises InputError: fewer tokens than new ones in a
    sequence, or tokens that are appended."""
    if min(contexts) < new_tokens:
        raise InputError(
            f"`batch_contexts` {min(contexts)} is less than `new_tokens` {new_tokens}; accepted: as many or more"
        )
    if overrides.append_kv:
        raise InputError(
            "`append_kv=True` contradicts `batch_contexts`; accepted with it: `context`"
        )
    return replace(shape, contexts=tuple(contexts))


def kind_shapes(
    model: Model, dtype: str | None, page_size: int | None, cache: Mapping[str, Any]
) -> list[ModelShape]:
    """The shapes of a model's layers by kind, `cache` being other fields of the problem. Raises InputError: a model
    that generates nothing."""
    if not model.causal:
        accepted = "a decoder, and `iosim predict` for this one"
        raise InputError(
            f"`model` '{model.name}' generates nothing: its tokens see all others; accepted: {accepted}"
        )
    fields = {"dtype": dtype or model.dtype or "bf16"} | (
        {} if page_size is None else {"page_size": page_size}
    )
    fields |= cache
    return [
        ModelShape(layers=kind.count, kind=kind, fields=tuple(fields.items()))
        for kind in model.all_kinds
    ]
