"""Boxes of detectors in plain PyTorch that TorchScript takes: decoding, overlap, suppression of doubles, features under a box.

A box is (left, top, right, bottom); an anchor or prior is (centre x, centre y, width, height).
"""
from __future__ import annotations

import math

import torch
from torch import Tensor


def decode(priors: Tensor, deltas: Tensor) -> Tensor:
    """Boxes from priors (N, 4) and predictions (..., N, 4): shifts in tenths of a size, logarithms of scale in fifths."""
    centre = priors[:, :2] + 0.1 * deltas[..., :2] * priors[:, 2:]
    half = 0.5 * priors[:, 2:] * torch.exp((0.2 * deltas[..., 2:]).clamp(max=4.0))
    return torch.cat([centre - half, centre + half], -1)


def centred(boxes: Tensor) -> Tensor:
    """Boxes (N, 4) as priors, for the second stage of a detector."""
    size = boxes[:, 2:] - boxes[:, :2]
    return torch.cat([boxes[:, :2] + 0.5 * size, size], 1)


def overlaps(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of all pairs: (N, 4), (M, 4) -> (N, M)."""
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    common = (high - low).clamp(min=0.0).prod(2)
    area_a = (a[:, 2:] - a[:, :2]).prod(1)
    area_b = (b[:, 2:] - b[:, :2]).prod(1)
    return common / (area_a[:, None] + area_b[None] - common + 1e-9)


def nms(boxes: Tensor, scores: Tensor, kinds: Tensor, overlap: float) -> Tensor:
    """Indices of the boxes (N, 4) that no better one of the same kind (N,) overlaps by more than ``overlap``, the best first."""
    order = scores.argsort(descending=True)
    boxes, kinds = boxes[order], kinds[order]
    covers = (overlaps(boxes, boxes) > overlap) & (kinds[:, None] == kinds[None])
    alive = torch.ones_like(kinds, dtype=torch.bool)
    for each in range(order.numel()):
        if bool(alive[each]):
            alive[each + 1 :].masked_fill_(covers[each, each + 1 :], False)  # TorchScript would drop `&=` on a slice
    return order[alive]


def corners(at: Tensor, extent: int) -> tuple[Tensor, Tensor, Tensor]:
    """The two neighbours of places on an axis, and how much the second counts."""
    at = at.clamp(0.0, float(extent - 1))
    low = at.floor()
    return low.long(), (low + 1).clamp(max=float(extent - 1)).long(), at - low


def roi_align(features: Tensor, boxes: Tensor, image: Tensor, scale: float, size: int, samples: int = 2) -> Tensor:
    """Features (B, C, H, W) under boxes (R, 4) of images (R,): (R, C, size, size), means of ``samples`` x ``samples`` bilinear ones each.

    He and others, "Mask R-CNN", 2017, arXiv 1703.06870. ``scale``: pixels of the features per pixel of the image.
    """
    batch, channels, height, width = features.shape
    points = size * samples
    steps = (torch.arange(points, device=boxes.device, dtype=boxes.dtype) + 0.5) / points
    low, high = boxes[:, :2] * scale - 0.5, boxes[:, 2:] * scale - 0.5
    places = low[:, :, None] + (high - low)[:, :, None] * steps  # (R, 2, points)
    left, right, along = corners(places[:, 0], width)
    top, bottom, down = corners(places[:, 1], height)
    pixels = features.permute(0, 2, 3, 1).reshape(batch * height * width, channels)
    upper = (image[:, None] * height + top)[:, :, None] * width
    lower = (image[:, None] * height + bottom)[:, :, None] * width
    along, down = along[:, None, :, None], down[:, :, None, None]
    above = pixels[upper + left[:, None]] * (1 - along) + pixels[upper + right[:, None]] * along  # (R, points, points, C)
    below = pixels[lower + left[:, None]] * (1 - along) + pixels[lower + right[:, None]] * along
    sampled = above * (1 - down) + below * down
    return sampled.view(-1, size, samples, size, samples, channels).mean([2, 4]).permute(0, 3, 1, 2)


def grid(height: int, width: int, shapes: list[tuple[float, float]], image: float) -> Tensor:
    """Priors around every place of a map: (height * width * shapes, 4); widths, heights and ``image`` are in pixels of the image."""
    y, x = torch.meshgrid((torch.arange(height) + 0.5) * image / height, (torch.arange(width) + 0.5) * image / width, indexing="ij")
    centres = torch.stack([x, y], -1)[:, :, None].expand(-1, -1, len(shapes), -1)
    return torch.cat([centres, torch.tensor(shapes).expand(height, width, -1, -1)], -1).reshape(-1, 4)


def shape(size: float, ratio: float) -> tuple[float, float]:
    """Width and height of a prior of the area of a square of ``size``."""
    return size * math.sqrt(ratio), size / math.sqrt(ratio)
