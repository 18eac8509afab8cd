"""A recommender after DLRM: Naumov and others, 2019, arXiv 1906.00091, with the features of the Criteo data set.

13 numbers (B, 13), and for each of 26 tables the rows of some categories, (B, 26, 10) of int64 -> the chance of a click, (B,).
"""
from __future__ import annotations

import torch
from torch import Tensor, nn

NUMBERS = 13
FULL, SMALL = (26, 20000, 10), (3, 50, 4)  # tables, rows of each, rows that one example takes of each


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers, each with a ReLU."""
    layers = nn.Sequential()
    for inside, outside in zip(widths, widths[1:]):
        layers.extend([nn.Linear(inside, outside), nn.ReLU()])
    return layers


class DLRM(nn.Module):
    """Sums of embeddings and the numbers' features; the products of all pairs of these, and a perceptron over them."""

    def __init__(self, tables: int, rows: int, width: int, bottom: tuple[int, ...], top: tuple[int, ...]) -> None:
        super().__init__()
        self.bottom = perceptron(NUMBERS, *bottom, width)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(perceptron(width + pairs, *top), nn.Linear(top[-1], 1))
        first, second = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        features = [dense]
        for place, table in enumerate(self.tables):
            features.append(table(categories[:, place]))
        together = torch.stack(features, 1)  # (B, tables + 1, width)
        products = torch.bmm(together, together.transpose(1, 2))[:, self.first, self.second]
        return torch.sigmoid(self.top(torch.cat([dense, products], 1)))[:, 0]


def dlrm(small: bool) -> nn.Module:
    tables, rows, _ = SMALL if small else FULL
    return DLRM(tables, rows, 8, (16,), (16, 8)) if small else DLRM(tables, rows, 64, (512, 256), (512, 256))


def draw(small: bool, batch: int) -> tuple[Tensor, ...]:
    """Random numbers and categories."""
    tables, rows, each = SMALL if small else FULL
    return torch.randn(batch, NUMBERS), torch.randint(rows, (batch, tables, each))
