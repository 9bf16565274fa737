"""A small decoder in PyTorch, written as a person would, and meters of its memory: saved storages and live storages."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from iosim.studies.training.model import Decoder, Setup

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "silu": F.silu,
    "relu": F.relu,
}


def norm(model: Decoder) -> nn.Module:
    if model.norm == "layer":
        return nn.LayerNorm(model.width)
    return nn.RMSNorm(model.width, eps=1e-5) if model.norm == "rms" else nn.Identity()


class Adapted(nn.Module):
    """A frozen linear layer with an adapter, computed as peft does (src/peft/tuners/lora/layer.py)."""

    def __init__(self, columns: int, out: int, bias: bool, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(columns, out, bias)
        self.lora_a = nn.Linear(columns, rank, bias=False)
        self.lora_b = nn.Linear(rank, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result = self.base(x)
        return result + self.lora_b(self.lora_a(x)) * 2.0


class Layer(nn.Module):
    def __init__(self, model: Decoder, setup: Setup, mask: Tensor) -> None:
        super().__init__()
        self.model, self.setup, self.mask = model, setup, mask
        d, wide = model.width, model.mlp_width
        self.norm1 = norm(model)
        if setup.lora_rank:
            for name, heads in (("q", model.heads), ("k", model.kv_heads), ("v", model.kv_heads)):
                setattr(self, name, self.linear(name, d, heads * model.head_dim))
        else:
            self.qkv = self.linear("qkv", d, model.qkv_width)
        self.out = self.linear("out", d, d)
        if wide:
            self.norm2 = norm(model)
            self.gate = self.linear("gate", d, wide) if model.gated else None
            self.up = self.linear("up", d, wide)
            self.down = self.linear("down", wide, d)

    def linear(self, name: str, columns: int, out: int) -> nn.Module:
        if name in self.setup.adapted:
            return Adapted(columns, out, self.model.bias, self.setup.lora_rank)
        return nn.Linear(columns, out, self.model.bias)

    def projections(self, h: Tensor) -> tuple[Tensor, ...]:
        if self.setup.lora_rank:
            return self.q(h), self.k(h), self.v(h)
        return (self.qkv(h),)

    def attention(self, *projected: Tensor) -> Tensor:
        m = self.model
        b, s, _ = projected[0].shape
        widths = [h * m.head_dim for h in (m.heads, m.kv_heads, m.kv_heads)]
        parts = projected if len(projected) > 1 else projected[0].split(widths, dim=-1)
        q, k, v = (x.view(b, s, -1, m.head_dim).transpose(1, 2) for x in parts)
        if self.setup.attention == "flash":
            o = F.scaled_dot_product_attention(
                q, k, v, is_causal=self.setup.causal, enable_gqa=m.heads != m.kv_heads
            )
            return o.transpose(1, 2).reshape(b, s, m.width)
        if m.heads != m.kv_heads:
            k, v = (x.repeat_interleave(m.heads // m.kv_heads, dim=1) for x in (k, v))
        o = self.weights(q, k) @ v
        return o.transpose(1, 2).reshape(b, s, m.width)

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        scores = (q * self.model.head_dim**-0.5) @ k.transpose(-2, -1)
        if self.setup.causal:
            scores = scores.masked_fill(self.mask, float("-inf"))
        return F.softmax(scores, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        if self.setup.recompute == "attention":
            x = x + self.out(
                checkpoint(self.attention, *self.projections(self.norm1(x)), use_reentrant=False)
            )
        else:
            x = x + self.out(self.attention(*self.projections(self.norm1(x))))
        if not self.model.mlp_width:
            return x
        act = ACTIVATIONS[self.model.activation]
        if self.gate is None:
            return x + self.down(act(self.up(self.norm2(x))))
        h = self.norm2(x)
        return x + self.down(act(self.gate(h)) * self.up(h))


class Network(nn.Module):
    """The model; `loss` is the step's forward."""

    def __init__(self, model: Decoder, setup: Setup, device: str = "cpu") -> None:
        super().__init__()
        self.model, self.setup = model, setup
        s, d = setup.seq_len, model.width
        mask = torch.ones(s, s, dtype=torch.bool, device=device).triu(1)
        self.mask = mask if setup.causal and setup.attention == "naive" else None
        with torch.device(device):
            if model.vocabulary:
                self.embedding = nn.Embedding(model.vocabulary, d)
                self.positions = nn.Embedding(s, d) if model.positions == "learned" else None
            self.layers = nn.ModuleList(Layer(model, setup, mask) for _ in range(model.layers))
            if model.vocabulary:
                self.norm = norm(model)
                self.head = nn.Linear(d, model.vocabulary, bias=False)
                if model.tied:
                    self.head.weight = self.embedding.weight
        number = setup.number
        self.to(DTYPES[number.dtype] if not number.autocast else torch.float32)
        if setup.lora_rank:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(".lora_" in name)

    def forward(self, x: Tensor) -> Tensor:
        if self.model.vocabulary:
            tokens, x = x, self.embedding(x)
            if self.positions is not None:
                x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = (
                checkpoint(layer, x, use_reentrant=False)
                if self.setup.recompute == "full"
                else layer(x)
            )
        return self.head(self.norm(x)) if self.model.vocabulary else x


class Step:
    """A network with its inputs, ready to run."""

    def __init__(self, model: Decoder, setup: Setup, device: str = "cpu") -> None:
        torch.manual_seed(0)
        self.setup, self.device = setup, device
        self.network = Network(model, setup, device)
        self.vocabulary = model.vocabulary
        b = setup.batch
        s = setup.seq_len
        number = setup.number
        self.dtype = DTYPES[number.dtype]
        if model.vocabulary:
            self.x = torch.randint(model.vocabulary, (b, s), device=device)
            self.targets = torch.randint(model.vocabulary, (b, s), device=device)
        else:
            held = torch.float32 if number.autocast else self.dtype
            self.x = torch.randn(b, s, model.width, device=device, dtype=held)
            self.gradient = torch.randn(b, s, model.width, device=device, dtype=held)

    def autocast(self) -> AbstractContextManager[Any]:
        if not self.setup.number.autocast:
            return nullcontext()
        return torch.autocast(self.device, self.dtype)

    def forward(self) -> Tensor:
        """The loss, or the output of a stack fed with hidden states."""
        with self.autocast():
            if not self.vocabulary:
                return self.network(self.x)
            return F.cross_entropy(self.network(self.x).flatten(0, 1), self.targets.flatten())

    def backward(self, result: Tensor) -> None:
        result.backward() if self.vocabulary else result.backward(self.gradient)

    def fixed(self) -> dict[int, int]:
        """Bytes of the storages of parameters, by address."""
        return {
            p.untyped_storage().data_ptr(): p.untyped_storage().nbytes()
            for p in self.network.parameters()
        }


def saved_storages(step: Step) -> list[int]:
    """Bytes of every storage that autograd packs in a forward, once each, parameters left out; sorted."""
    seen: dict[int, int] = {}
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.nbytes() and tensor.device.type == step.device:
            seen[storage.data_ptr()] = storage.nbytes()
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = step.forward()
    del result
    return sorted(size for address, size in seen.items() if address not in step.fixed())


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages that operations have made and that still live, after every operation."""

    def __init__(self, known: dict[int, int]) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self.seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.known = known
        self.log: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        self.peak = max(self.peak, self.live)
        self.log.append((str(func), self.live))
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self.seen or storage.data_ptr() in self.known:
            return
        size = storage.nbytes()
        self.seen[storage] = size
        self.live += size
        weakref.finalize(storage, self._gone, size)

    def _gone(self, size: int) -> None:
        self.live -= size


@contextmanager
def counted(step: Step, extra: tuple[Tensor, ...] = ()) -> Iterator[LiveBytes]:
    """Live bytes beyond parameters, inputs and `extra`."""
    held = [step.x, *([step.targets] if step.vocabulary else [step.gradient]), *extra]
    if step.network.mask is not None:
        held.append(step.network.mask)
    known = step.fixed() | {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held
    }
    with LiveBytes(known) as meter:
        yield meter
