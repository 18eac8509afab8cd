"""A BERT-base encoder: Devlin, Chang, Lee, Toutanova, 2018, arXiv 1810.04805.

Tokens and mask (B, L) of int64, 1 where there is a token -> states (B, L, 768), and (B, 768) for the sequence.
"""
from __future__ import annotations

import math

import torch
from torch import Tensor, nn

FULL, SMALL = (30522, 128), (100, 12)  # words, and length of a text


class Attention(nn.Module):
    """Heads of softmax(Q K^T / sqrt(d)) V with dense layers before and after."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.each = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, self.each).transpose(1, 2)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(self.each) + bias
        mixed = torch.matmul(torch.softmax(scores, 3), value)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    """Attention and two dense layers, each added to what it was given and normalised after."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.first, self.second = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = self.first(x + self.attention(x, bias))
        return self.second(x + self.dense(x))


class Bert(nn.Module):
    """Embeddings of tokens and places, layers, and a tanh of the first token's state."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.pooler = nn.Linear(width, width)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.tokens(tokens) + self.places(places))
        bias = (1.0 - mask[:, None, None].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, bias)
        return x, torch.tanh(self.pooler(x[:, 0]))


def bert_base(small: bool) -> nn.Module:
    return Bert(100, 16, 32, 4, 2) if small else Bert(30522, 512, 768, 12, 12)


def draw(small: bool, batch: int) -> tuple[Tensor, ...]:
    """Random tokens; the last quarter of every second text is padding."""
    vocabulary, length = SMALL if small else FULL
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[::2, -(length // 4) :] = 0
    return torch.randint(vocabulary, (batch, length)), mask
