"""What a decoder runs, operator by operator, by the numbers of its config: prefill, a step of decoding, or of training.

Operators are PyTorch's eager ones: each reads its inputs and writes its outputs, through an L2 that keeps what fits.
RMSNorm is one launch, each projection a product, MLA's keys and values expanded but for a step of decoding, experts one
grouped product. `fused` puts positions, the MLP's activation, and the sum before a norm into one launch each.

Of layers that are alike the first are written, two or as many as fill the L2 some times; the last of them stands for
all others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.hardware.profile import HardwareProfile
from iosim.problem.attention import AttentionProblem
from iosim.studies.models.layers import LayerKind, Mlp, Model, Weights
from iosim.studies.program.operators import View
from iosim.studies.program.tape import Tape, Weight, every

FILLS = 4
"""How often the weights of the layers that are written, of those alike, fill the L2."""


@dataclass(frozen=True)
class Work:
    """What a model is asked to do: `queries` new tokens of each of `batch` sequences, `keys` in all with those before;
    with `trained` a forward, its backward and the optimizer's step. `cache_dtype`: of keys and values that a step of
    decoding finds in the cache; None for the activations' type."""

    batch: int
    queries: int
    keys: int
    kernel: str
    trained: bool = False
    fused: bool = False
    cache_dtype: str | None = None

    @property
    def tokens(self) -> int:
        return self.batch * self.queries

    @property
    def decodes(self) -> bool:
        """True where keys and values of earlier tokens lie in a cache."""
        return self.keys > self.queries


@dataclass(frozen=True)
class Touched:
    """Experts of a layer that some token of a step passes: `mean` where every token picks its own at random."""

    experts: int
    least: int
    mean: float
    most: int

    @property
    def counted(self) -> int:
        """The whole number next to the mean."""
        return max(1, round(self.mean))


def touched(mlp: Mlp, tokens: int) -> Touched:
    active = mlp.active or 0
    # Expected number of distinct experts, each token picking `active` of them at random and all
    # tokens alone: a given expert is missed by one token with probability 1 - active / experts.
    mean = mlp.experts * (1 - (1 - active / mlp.experts) ** tokens)
    return Touched(mlp.experts, active, mean, min(mlp.experts, active * tokens))


def weights_of(model: Model, kind: str | None) -> Weights:
    """The weights of a model, all in `kind` where that is asked for. Raises InputError: its config does not say
    them."""
    weights = model.weights
    if weights is None or not _plays(model, weights):
        why = (
            "its config does not say what follows attention in its layers"
            if weights is None
            else _unplayed(model)
        )
        accepted = "decoders each of whose layers attends and has an MLP or experts, their weights in a known type"
        raise InputError(f"`model` '{model.name}': {why}; accepted: {accepted}")
    if any(mlp.experts and mlp.active is None for mlp in weights.mlps):
        hint = "accepted: one with num_experts_per_tok"
        raise InputError(
            f"`model` '{model.name}': its config does not say how many experts a token passes; {hint}"
        )
    return weights if kind is None else weights.in_one(kind)


def _plays(model: Model, weights: Weights) -> bool:
    """True where every layer is attention and an MLP or experts, which the writer knows."""
    fed = all(
        (mlp.inner or mlp.experts) and not mlp.columns for mlp in weights.mlps[: len(model.order)]
    )
    attends = all(kind.compress is None for kind in model.kinds) and all(
        more >= 0 for more in weights.more
    )
    return fed and attends and not model.states and len(model.order) == model.layers


def _unplayed(model: Model) -> str:
    if model.states:
        return "some of its layers keep a state, whose operators are not described"
    return "some of its layers are not attention followed by an MLP or experts"


class Writer:
    """Writes the program of a model onto a tape. Raises InputError: a kernel that cannot run its attention."""

    def __init__(
        self, model: Model, weights: Weights, work: Work, profile: HardwareProfile, kind: str
    ) -> None:
        self.model, self.weights, self.work, self.kind = model, weights, work, kind
        self.tape = Tape(profile, kind, trained=work.trained)
        self._enough = FILLS * profile.need_int("l2_bytes")
        self._tables: dict[int, tuple[View, View]] = {}
        self._number = weights.attention_number

    def written(self) -> Tape:
        tape, weights, work = self.tape, self.weights, self.work
        width, rows = weights.width, self._share(weights.vocabulary)
        tape.part = "embedding"
        table = tape.weight(rows, width)
        x = tape.embedding(table, work.tokens)
        if weights.learned:
            x = tape.add(x, tape.embedding(tape.weight(work.keys, width), work.queries))
        branch = None
        layers = list(zip(self.model.order, weights.mlps, strict=False))
        kinds = {kind.name: kind for kind in self.model.kinds}
        # Groups of layers that are alike, in the order of their first; within a group the first layers
        # are written until their weights have filled the L2 some times, and the last one written stands
        # for the rest: by then the L2 holds what it would hold in any later layer.
        for (name, mlp), count in Counter(layers).items():
            start, done = tape.given_bytes, 0
            while done < count:
                # (done + 1) / done extrapolates the bytes of the layers so far to one layer more.
                enough = done and (tape.given_bytes - start) * (done + 1) // done > self._enough
                tape.times = count - done if enough else 1
                x, branch = self._layer(kinds[name], mlp, x, branch)
                done += tape.times
        tape.times = 1
        x, last = self._sum_and_norm(x, branch)
        tape.part = "head"
        if not work.trained and work.queries > 1:  # of each sequence the last token's scores
            last = every(last, work.queries)
        scores = tape.linear(last, table if weights.tied else tape.weight(rows, width), rows)
        if not work.trained:
            tape.keep(scores)
        else:
            tape.part = "loss"
            tape.cross_entropy(scores)
            tape.learn()
            tape.step()
        return tape

    def _share(self, size: int) -> int:
        return -(-size // self.model.tensor_parallel)

    def _matrix(self, rows: int, cols: int, groups: int = 1, *, experts: bool = False) -> Weight:
        number = self.weights.expert_number if experts else self._number
        return self.tape.weight(groups * rows, cols, number)

    def _linear(self, x: View, cols: int) -> View:
        return self.tape.linear(x, self._matrix(cols, x.sizes[1]), cols)

    def _sum_and_norm(self, x: View, branch: View | None) -> tuple[View, View]:
        """(the residual stream with what a branch adds to it, its norm)."""
        tape = self.tape
        # One launch reads the stream, the branch and the norm's scale, and writes sum and norm.
        if branch is not None and self.work.fused:
            tape.part = "norms"
            scale, total, out = tape.given(1, x.sizes[1]), tape.made(*x.sizes), tape.made(*x.sizes)
            tape.passes("fused_add_rms_norm", [x, branch, scale], [total, out])
            return total, out
        if branch is not None:
            tape.part = "residual"
            x = tape.add(x, branch)
        return x, self._norm(x)

    def _norm(self, x: View) -> View:
        part, self.tape.part = self.tape.part, "norms"
        out = self.tape.norm(x)
        self.tape.part = part
        return out

    def _layer(self, kind: LayerKind, mlp: Mlp, x: View, branch: View | None) -> tuple[View, View]:
        """(the residual stream before the layer's last branch, that branch)."""
        more = self.weights.norms > 2
        # `hold` keeps a tensor alive up to here, as Python's references do in eager PyTorch: it decides
        # which memory a new tensor reuses, and so what the L2 still has.
        before = x
        x, normed = self._sum_and_norm(x, branch)
        self.tape.hold(before, branch)
        branch = (self._attention if kind.latent is None else self._latent)(kind, normed)
        self.tape.hold(normed)
        before = x
        x, normed = self._sum_and_norm(x, self._norm(branch) if more else branch)
        branch = self._experts(mlp, normed) if mlp.experts else self._mlp("MLP", normed, mlp)
        branch = self._norm(branch) if more else branch
        self.tape.hold(before, normed)
        return x, branch

    # ---- attention ----

    def _attention(self, kind: LayerKind, x: View) -> View:
        tape = self.tape
        tape.part = "projections"
        q = self._linear(x, kind.heads * kind.head_dim)
        if kind.shares:
            return self._attended(kind, self._turned(q, kind.head_dim), *self._shared(kind))
        k, v = (
            self._linear(x, kind.kv_heads * kind.head_dim),
            self._linear(x, kind.kv_heads * kind.head_dim_v),
        )
        # Norms over head_dim columns, per head (Qwen3's q_norm and k_norm).
        if self.weights.head_norms:
            q, k = (
                self._norm(tape.reshape(t, math.prod(t.sizes) // kind.head_dim)) for t in (q, k)
            )
        if self.weights.turned and not kind.alibi:
            before = q, k
            q, k = (self._turned(t, kind.head_dim) for t in before)
            tape.hold(*before)
        return self._attended(kind, q, k, v)

    def _shared(self, kind: LayerKind) -> tuple[View, View]:
        """Keys and values that an earlier layer wrote."""
        rows = self.work.batch * self._problem(kind).seq_k
        size = self._problem(kind).cache_type.bytes
        return tuple(
            self.tape.given(rows, kind.kv_heads * columns, size)
            for columns in (kind.head_dim, kind.head_dim_v)
        )  # type: ignore[return-value]

    def _turned(self, x: View, dim: int) -> View:
        """x with rotary positions over heads of `dim` columns."""
        tape, work = self.tape, self.work
        tape.part = "positions"
        # One table of cosines and one of sines, made once and read by all layers.
        if dim not in self._tables:
            self._tables[dim] = tape.given(work.queries, dim), tape.given(work.queries, dim)
        # PyTorch's rotary code works on [tokens x heads, dim]; the transposed view is copied.
        heads = x if x.sizes[1] == dim else tape.reshape(x, math.prod(x.sizes) // dim, copied=True)
        if not work.fused:
            return tape.turn(heads, *self._tables[dim])
        return tape.new("rotary_embedding", [heads, *self._tables[dim]], heads)

    def _attended(self, kind: LayerKind, q: View, k: View, v: View | None) -> View:
        """The attention of one layer and its output's projection; new keys and values go into the cache first."""
        tape, work = self.tape, self.work
        problem = self._problem(kind)
        # New keys and values are written into the cache, then all of it is read.
        if work.decodes and not kind.shares:
            tape.part = "cache"
            k, v = self._cached(problem, k), None if v is None else self._cached(problem, v)
        tape.part = "attention"
        out = tape.attention(problem, work.kernel, q, k, v)
        if problem.latent_kv:
            assert kind.latent is not None
            tape.part = "projections"
            # Absorbed MLA attends in the latent space: V's projection comes after the attention, per head.
            out = self._by_head(out, kind, kind.latent.kv_rank, kind.head_dim_v)
        tape.part = "projections"
        projected = self._linear(tape.reshape(out, work.tokens), self.weights.width)
        tape.hold(q, k, v, out)
        return projected

    def _problem(self, kind: LayerKind) -> AttentionProblem:
        work = self.work
        passes = "fwd+bwd" if work.trained else "fwd"  # MLA is not absorbed where it learns
        problem = kind.problem(
            work.queries, work.keys, batch=work.batch, dtype=self.kind, passes=passes
        )
        # Projections write [batch, tokens, heads, dim]; absorbed and packed calls have heads first.
        layout = "bhsd" if problem.latent_kv or problem.seq_lens is not None else "bshd"
        problem = problem.with_(passes="fwd", layout=layout)
        # A prompt's keys and values are still at hand in the activations' type.
        if work.cache_dtype is None or not work.decodes:
            return problem
        return problem.with_(cache_dtype=work.cache_dtype)

    def _cached(self, problem: AttentionProblem, new: View) -> View:
        columns = math.prod(new.sizes) // self.work.tokens
        cache = self.tape.given(problem.batch * problem.seq_k, columns, problem.cache_type.bytes)
        # Where in the cache the new rows go changes no byte counts: they are put at its start.
        place = View(cache.storage, 0, (math.prod(new.sizes),), (1,), cache.element_bytes)
        self.tape.passes("index_copy_", [new], [place])
        return cache

    def _latent(self, kind: LayerKind, x: View) -> View:
        """MLA (arXiv 2405.04434, section 2.1): keys and values from one latent vector a token."""
        tape, latent = self.tape, kind.latent
        assert latent is not None
        tape.part = "projections"
        low = x if latent.q_rank is None else self._norm(self._linear(x, latent.q_rank))
        q = self._linear(low, kind.heads * kind.head_dim)
        # The indexer's queries come from the low-rank queries, its keys and head weights from the
        # residual stream (DeepSeek-V3.2).
        if latent.index_dim and not self.work.trained:
            for source, cols in (
                (low, latent.index_heads * latent.index_dim),
                (x, latent.index_dim + latent.index_heads),
            ):
                self._linear(source, cols)
        whole = self._linear(x, latent.width)
        compressed, to_turn = tape.split(whole, (latent.kv_rank, latent.rope))
        compressed = self._norm(compressed)
        heads = tape.reshape(q, self.work.tokens * kind.heads)
        q_nope, q_rope = tape.split(heads, (latent.nope, latent.rope))
        q_rope, k_rope = self._turned(q_rope, latent.rope), self._turned(to_turn, latent.rope)
        if self._problem(kind).latent_kv:
            tape.part = "projections"
            # Absorbed: queries go into the latent space, so that keys need not be expanded.
            q_nope = self._by_head(q_nope, kind, latent.nope, latent.kv_rank)
            tape.part = "positions"
            return self._attended(
                kind, tape.join(q_nope, q_rope), tape.join(compressed, k_rope), None
            )
        tape.part = "projections"
        expanded = self._linear(compressed, kind.heads * (latent.nope + kind.head_dim_v))
        k_nope, v = tape.split(
            tape.reshape(expanded, self.work.tokens * kind.heads), (latent.nope, kind.head_dim_v)
        )
        tape.part = "positions"
        return self._attended(kind, tape.join(q_nope, q_rope), tape.join(k_nope, k_rope), v)

    def _by_head(self, x: View, kind: LayerKind, inner: int, cols: int) -> View:
        """A product a head: the absorbed half of MLA's projection of keys, or of values."""
        tokens, heads = self.work.tokens, kind.heads
        weight, out = self._matrix(cols, inner, heads), self.tape.made(tokens * heads, cols)
        self.tape.multiplies(x, weight.view, out, (heads, tokens, cols, inner), weight.number)
        return out

    # ---- MLPs ----

    def _mlp(self, part: str, x: View, mlp: Mlp) -> View:
        self.tape.part = part
        inner = self._share(mlp.inner)
        self._number = self.weights.dense
        inside = self._linear(x, inner)
        if mlp.matrices == 2:
            inside = self.tape.pointwise("gelu", inside)
        else:
            inside = self._gated(inside, lambda: self._linear(x, inner))
        out = self._linear(inside, x.sizes[1])
        self._number = self.weights.attention_number
        return out

    def _gated(self, gate: View, up: Callable[[], View]) -> View:
        """silu(gate) up."""
        if not self.work.fused:
            return self.tape.multiply(self.tape.pointwise("silu", gate), up())
        return self.tape.new("silu_and_mul", [gate, up()], gate)

    def _experts(self, mlp: Mlp, x: View) -> View:
        """Every token through its experts: a router, the tokens in the order of their experts, two grouped products,
        and the sum of what comes back. All experts that are touched have as many tokens."""
        tape, tokens, active = self.tape, self.work.tokens, mlp.active or 1
        # A grouped product per matrix over the experts that are touched; only their weights are read.
        width, wide, number = x.sizes[1], self._share(mlp.wide), touched(mlp, tokens).counted
        tape.part = "router"
        scores = tape.linear(x, tape.weight(mlp.experts, width), mlp.experts)
        chances = tape.pointwise("sigmoid", scores)
        picked = tape.pick(chances, active)
        tape.part = "experts"
        sorted_x = tape.gather(x, tokens * active)
        both = (mlp.matrices - 1) * wide
        inside = tape.linear(
            sorted_x, self._matrix(both, width, number, experts=True), both, number
        )
        if mlp.matrices == 3:
            gate, up = tape.split(inside, (wide, wide))
            inside = self._gated(gate, lambda: up)
        else:
            inside = tape.pointwise("gelu", inside)
        out = tape.linear(inside, self._matrix(width, wide, number, experts=True), width, number)
        out = tape.multiply(out, tape.reshape(picked, tokens * active))
        out = tape.add_up(tape.gather(out, tokens * active), tokens)
        if not mlp.inner:
            return out
        return tape.add(self._mlp("shared experts", x, mlp), out)
