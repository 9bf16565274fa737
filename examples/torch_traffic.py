"""What a PyTorch module would move on an H100, module by module, with no GPU: a GPT-2 with PyTorch's attention, and the
same with attention written as products and a softmax.

    python examples/torch_traffic.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from iosim.torch import ProgramTraffic, TrafficMode

WIDTH, HEADS, LAYERS, BATCH, TOKENS, VOCABULARY = 768, 12, 2, 8, 1024, 50304


class Attention(nn.Module):
    def __init__(self, written_out: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.written_out = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
            written_out,
        )
        self.register_buffer("future", torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            t.view(BATCH, TOKENS, HEADS, -1).transpose(1, 2)
            for t in self.qkv(x).split(WIDTH, dim=-1)
        )
        if self.written_out:
            scores = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).masked_fill(
                self.future, float("-inf")
            )
            y = functional.softmax(scores, dim=-1) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH))


class Block(nn.Module):
    def __init__(self, written_out: bool) -> None:
        super().__init__()
        self.norm_1, self.attention, self.norm_2 = (
            nn.LayerNorm(WIDTH),
            Attention(written_out),
            nn.LayerNorm(WIDTH),
        )
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT2(nn.Module):
    def __init__(self, written_out: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block(written_out) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(TOKENS, device=ids.device))
        return self.head(self.norm(self.blocks(x)))


def trained(written_out: bool) -> ProgramTraffic:
    """A forward and a backward on meta tensors, as an H100 would run them."""
    with torch.device("meta"):
        model = GPT2(written_out).to(torch.bfloat16)
        ids = torch.zeros(BATCH, TOKENS, dtype=torch.long)
    with TrafficMode(gpu="h100", cudnn="9.19.0") as t:
        functional.cross_entropy(model(ids).view(-1, VOCABULARY), ids.view(-1)).backward()
    return t.result


def main() -> None:
    fused = trained(written_out=False)
    print(fused)
    print("What moves most:")
    print(fused.by_operator())
    written_out = trained(written_out=True)
    more = written_out.hbm.total / fused.hbm.total
    print(
        f"Attention written out: {written_out.hbm.total / 1e9:.1f} GB in place of {fused.hbm.total / 1e9:.1f} GB "
        f"at HBM ({more:.2f} times) and {written_out.time_s / fused.time_s:.2f} times the time."
    )


if __name__ == "__main__":
    main()
