"""A GPT-2-small decoder: Radford and others, "Language Models are Unsupervised Multitask Learners", 2019.

Tokens (B, L) of int64 -> logits of the next token at every place, (B, L, 50257).
"""
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FULL, SMALL = (50257, 128), (100, 12)  # words, and length of a text


class Block(nn.Module):
    """Causal attention and two dense layers, each of what it is given normalised, and added to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        mixed = self.mix(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4).unbind(0)
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, length, width))
        return x + self.dense(self.between(x))


class GPT2(nn.Module):
    """Embeddings of tokens and places, blocks, a norm, and the product with the tokens' embeddings."""

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.tokens(tokens) + self.places(places)))
        return F.linear(x, self.tokens.weight)


def gpt2_small(small: bool) -> nn.Module:
    return GPT2(100, 16, 32, 4, 2) if small else GPT2(50257, 1024, 768, 12, 12)


def draw(small: bool, batch: int) -> tuple[Tensor, ...]:
    """Random tokens."""
    vocabulary, length = SMALL if small else FULL
    return (torch.randint(vocabulary, (batch, length)),)
