"""Small models whose traffic is predicted on meta tensors and counted on a GPU: a GPT-2, a Llama with grouped heads, a
vision transformer, and a GPT whose attention is written with products and a softmax. Needs PyTorch alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


class Attention(nn.Module):
    """Causal self-attention as GPT-2 has it: one projection to Q, K and V; `naive` writes out its products."""

    def __init__(
        self, width: int, heads: int, tokens: int, causal: bool, naive: bool, device: Any
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.naive = heads, causal, naive
        self.qkv = nn.Linear(width, 3 * width, device=device)
        self.proj = nn.Linear(width, width, device=device)
        if naive:
            self.register_buffer(
                "future", torch.ones(tokens, tokens, dtype=torch.bool, device=device).triu(1)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            t.view(batch, tokens, self.heads, -1).transpose(1, 2)
            for t in self.qkv(x).split(width, dim=-1)
        )
        if self.naive:
            scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
            scores = scores.masked_fill(self.future, float("-inf"))
            y = functional.softmax(scores, dim=-1) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(y.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(
        self,
        width: int,
        heads: int,
        tokens: int,
        causal: bool,
        naive: bool,
        tanh: bool,
        device: Any,
    ) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, device=device)
        self.attn = Attention(width, heads, tokens, causal, naive, device)
        self.ln_2 = nn.LayerNorm(width, device=device)
        gelu = nn.GELU(approximate="tanh" if tanh else "none")
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, device=device),
            gelu,
            nn.Linear(4 * width, width, device=device),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(
        self,
        vocabulary: int,
        width: int,
        heads: int,
        layers: int,
        tokens: int,
        naive: bool,
        device: Any,
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width, device=device)
        self.wpe = nn.Embedding(tokens, width, device=device)
        self.blocks = nn.ModuleList(
            Block(width, heads, tokens, True, naive, True, device) for _ in range(layers)
        )
        self.ln_f = nn.LayerNorm(width, device=device)
        self.head = nn.Linear(width, vocabulary, bias=False, device=device)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


class LlamaAttention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, device: Any) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.q = nn.Linear(width, width, bias=False, device=device)
        self.k = nn.Linear(width, kv_heads * self.head_dim, bias=False, device=device)
        self.v = nn.Linear(width, kv_heads * self.head_dim, bias=False, device=device)
        self.o = nn.Linear(width, width, bias=False, device=device)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            p(x).view(batch, tokens, -1, self.head_dim).transpose(1, 2)
            for p in (self.q, self.k, self.v)
        )
        q, k = (t * cos + turned(t) * sin for t in (q, k))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(batch, tokens, width))


def turned(x: torch.Tensor) -> torch.Tensor:
    """Half of the columns turned by a right angle, as rotary positions do."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int, device: Any) -> None:
        super().__init__()
        self.norm_1 = nn.RMSNorm(width, eps=1e-5, device=device)
        self.attn = LlamaAttention(width, heads, kv_heads, device)
        self.norm_2 = nn.RMSNorm(width, eps=1e-5, device=device)
        self.gate = nn.Linear(width, hidden, bias=False, device=device)
        self.up = nn.Linear(width, hidden, bias=False, device=device)
        self.down = nn.Linear(hidden, width, bias=False, device=device)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm_1(x), cos, sin)
        y = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(
        self,
        vocabulary: int,
        width: int,
        heads: int,
        kv_heads: int,
        hidden: int,
        layers: int,
        tokens: int,
        device: Any,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, device=device)
        self.blocks = nn.ModuleList(
            LlamaBlock(width, heads, kv_heads, hidden, device) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width, eps=1e-5, device=device)
        self.head = nn.Linear(width, vocabulary, bias=False, device=device)
        head_dim = width // heads
        rates = 10000.0 ** (-torch.arange(0, head_dim, 2, device=device) / head_dim)
        angles = torch.outer(
            torch.arange(tokens, device=device, dtype=torch.float32), rates
        ).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


class ViT(nn.Module):
    def __init__(
        self, width: int, heads: int, layers: int, side: int, patch: int, classes: int, device: Any
    ) -> None:
        super().__init__()
        tokens = (side // patch) ** 2 + 1
        self.patches = nn.Conv2d(3, width, patch, stride=patch, device=device)
        self.cls = nn.Parameter(torch.zeros(1, 1, width, device=device))
        self.position = nn.Parameter(torch.zeros(1, tokens, width, device=device))
        self.blocks = nn.ModuleList(
            Block(width, heads, tokens, False, False, False, device) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width, device=device)
        self.head = nn.Linear(width, classes, device=device)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(len(x), -1, -1), x), dim=1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


@dataclass(frozen=True)
class Case:
    """A model with its inputs: `make` builds it, `inputs` and `targets` are shapes."""

    make: Callable[[Any], nn.Module]
    inputs: tuple[int, ...]
    targets: tuple[int, ...]
    classes: int
    images: bool = False


MODELS = {
    "gpt2": Case(lambda d: GPT(50304, 768, 12, 6, 1024, False, d), (8, 1024), (8, 1024), 50304),
    "llama": Case(
        lambda d: Llama(32000, 1024, 16, 4, 2816, 4, 2048, d), (4, 2048), (4, 2048), 32000
    ),
    "vit": Case(
        lambda d: ViT(768, 12, 6, 224, 16, 1000, d), (64, 3, 224, 224), (64,), 1000, images=True
    ),
    "naive": Case(lambda d: GPT(32000, 768, 12, 4, 1024, True, d), (4, 1024), (4, 1024), 32000),
}
ATTENTION = {
    "gpt2": (8, 12, 12, 1024, 64, True),
    "llama": (4, 16, 4, 2048, 64, True),
    "vit": (64, 12, 12, 197, 64, False),
}
"""(batch, heads, key/value heads, tokens, head_dim, causal) of each model's attention."""
BACKENDS = ("default", "flash")
PASSES = ("fwd", "fwd+bwd")
DTYPE = torch.bfloat16


def model_call(name: str, passes: str, device: str) -> tuple[Callable[[], Any], nn.Module]:
    """(one step of a model, the model): its logits without gradients, or the gradients of its loss."""
    case = MODELS[name]
    torch.manual_seed(7)
    model = case.make(device).to(DTYPE)
    if case.images:
        x = torch.randn(case.inputs, device=device, dtype=DTYPE)
    else:
        x = torch.randint(case.classes, case.inputs, device=device)
    y = torch.randint(case.classes, case.targets, device=device)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    def both() -> torch.Tensor:
        loss = functional.cross_entropy(model(x).view(-1, case.classes), y.view(-1))
        loss.backward()
        return loss.detach()

    return (forward if passes == "fwd" else both), model


def attention_call(name: str, backend: str, passes: str, device: str) -> Callable[[], Any]:
    """Attention of a model alone, its inputs [batch, tokens, heads, head_dim] in memory as in the model."""
    batch, heads, kv_heads, tokens, head_dim, causal = ATTENTION[name]
    torch.manual_seed(7)
    q, k, v, grad = (
        torch.randn(batch, tokens, h, head_dim, device=device, dtype=DTYPE).transpose(1, 2)
        for h in (heads, kv_heads, kv_heads, heads)
    )
    leaves = [t.requires_grad_(passes != "fwd") for t in (q, k, v)]
    allowed = None if backend == "default" else SDPBackend.FLASH_ATTENTION

    def attend() -> torch.Tensor:
        if allowed is None:
            return functional.scaled_dot_product_attention(
                *leaves, is_causal=causal, enable_gqa=kv_heads < heads
            )
        with sdpa_kernel(allowed):
            return functional.scaled_dot_product_attention(
                *leaves, is_causal=causal, enable_gqa=kv_heads < heads
            )

    def call() -> Any:
        out = attend()
        return out if passes == "fwd" else torch.autograd.grad(out, leaves, grad)

    return call


def cases() -> list[tuple[str, str, str, str]]:
    """(what, name, backend, passes) of all that is predicted and counted, in order."""
    models = [("model", name, "default", passes) for name in MODELS for passes in PASSES]
    return models + [
        ("attention", name, backend, passes)
        for name in ATTENTION
        for backend in BACKENDS
        for passes in PASSES
    ]
