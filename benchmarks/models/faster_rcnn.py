"""Faster R-CNN: Ren, He, Girshick, Sun, arXiv 1506.01497, on a ResNet-50 with a feature pyramid (Lin and others, arXiv 1612.03144).

(B, 3, S, S), 608 pixels here as the paper's short side is 600 -> boxes (K, 4), scores (K,), classes (K,), image of each (K,).
"""
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.boxes import centred, decode, grid, nms, roi_align, shape
from models.layers import images
from models.resnet import Bottleneck, stage, stem

draw = images(608, 64)
RATIOS = (0.5, 1.0, 2.0)
STRIDE = 4  # of the first map of the pyramid; each further one has twice as much
ROI = 7


class Pyramid(nn.Module):
    """Maps of a backbone's stages, (B, inside, H, W) each, in one width, the coarse added to the fine; one coarser map follows."""

    def __init__(self, insides: list[int], width: int) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(inside, width, 1) for inside in insides)
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in insides)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        even = []
        for number, lateral in enumerate(self.lateral):
            even.append(lateral(maps[number]))
        for number in range(len(even) - 1, 0, -1):
            fine = even[number - 1]
            even[number - 1] = fine + F.interpolate(even[number], size=fine.shape[2:], mode="nearest")
        found = []
        for number, smooth in enumerate(self.smooth):
            found.append(smooth(even[number]))
        found.append(F.max_pool2d(found[-1], 1, 2))
        return found


class FasterRCNN(nn.Module):
    """Backbone, pyramid, proposals from every place of every map, then a class and a better box for the best of them."""

    def __init__(self, depths: tuple[int, ...], width: int, pyramid: int, hidden: int, pixels: int, classes: int, proposals: int) -> None:
        super().__init__()
        self.stem = stem(width)
        self.stages = nn.ModuleList()
        insides = [width]
        for number, depth in enumerate(depths):
            self.stages.append(stage(Bottleneck, insides[-1], width << number, depth, 1 if number == 0 else 2))
            insides.append(4 * width << number)
        self.pyramid = Pyramid(insides[1:], pyramid)
        self.proposer = nn.Sequential(nn.Conv2d(pyramid, pyramid, 3, padding=1), nn.ReLU())
        self.objectness = nn.Conv2d(pyramid, len(RATIOS), 1)
        self.shifts = nn.Conv2d(pyramid, 4 * len(RATIOS), 1)
        self.head = nn.Sequential(nn.Linear(pyramid * ROI * ROI, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.classifier = nn.Linear(hidden, classes + 1)
        self.refiner = nn.Linear(hidden, 4 * (classes + 1))
        self.proposals, self.roi = proposals, ROI
        self.coarse = 8.0 * STRIDE
        self.scales = [1.0 / (STRIDE << number) for number in range(len(depths))]
        priors, owners = [], []
        for number in range(len(depths) + 1):
            side = -(-pixels // (STRIDE << number))
            priors.append(grid(side, side, [shape(8.0 * (STRIDE << number), 1 / ratio) for ratio in RATIOS], float(pixels)))
            owners.append(torch.full((len(priors[-1]),), number))
        self.register_buffer("priors", torch.cat(priors))
        self.register_buffer("owners", torch.cat(owners))

    def propose(self, maps: list[Tensor], pixels: int) -> tuple[Tensor, Tensor]:
        """The best boxes of all images, (R, 4), and the image of each, (R,)."""
        batch = maps[0].shape[0]
        scores, deltas = [], []
        for features in maps:
            hidden = self.proposer(features)
            scores.append(self.objectness(hidden).permute(0, 2, 3, 1).reshape(batch, -1))
            deltas.append(self.shifts(hidden).permute(0, 2, 3, 1).reshape(batch, -1, 4))
        score = torch.cat(scores, 1)
        places = decode(self.priors, torch.cat(deltas, 1)).clamp(0.0, float(pixels))
        boxes, images = [], []
        for image in range(batch):
            best, order = score[image].topk(min(4 * self.proposals, score.shape[1]))
            box = places[image][order]
            wide = ((box[:, 2:] - box[:, :2]) >= 1.0).all(1)
            box, best, order = box[wide], best[wide], order[wide]
            kept = nms(box, best, self.owners[order], 0.7)[: self.proposals]
            boxes.append(box[kept])
            images.append(torch.full_like(kept, image))
        return torch.cat(boxes), torch.cat(images)

    def pool(self, maps: list[Tensor], boxes: Tensor, image: Tensor) -> Tensor:
        """Features under boxes, (R, C, 7, 7), from the map where a box has about the size of the priors."""
        size = (boxes[:, 2:] - boxes[:, :2]).prod(1).sqrt()
        level = torch.floor(torch.log2(size / self.coarse + 1e-6)).clamp(0.0, len(self.scales) - 1.0).long()
        pooled = torch.zeros(boxes.shape[0], maps[0].shape[1], self.roi, self.roi, dtype=boxes.dtype, device=boxes.device)
        for number, scale in enumerate(self.scales):
            here = torch.where(level == number)[0]
            pooled[here] = roi_align(maps[number], boxes[here], image[here], scale, self.roi)
        return pooled

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        pixels = x.shape[3]
        x = self.stem(x)
        maps = []
        for part in self.stages:
            x = part(x)
            maps.append(x)
        maps = self.pyramid(maps)
        boxes, image = self.propose(maps, pixels)
        hidden = self.head(self.pool(maps, boxes, image).flatten(1))
        chances = torch.softmax(self.classifier(hidden), 1)
        score, kind = chances[:, 1:].max(1)
        deltas = self.refiner(hidden).view(boxes.shape[0], -1, 4)
        delta = deltas.gather(1, (kind + 1)[:, None, None].expand(-1, 1, 4))[:, 0]
        boxes = decode(centred(boxes), delta).clamp(0.0, float(pixels))
        sure = score > 0.05
        boxes, score, kind, image = boxes[sure], score[sure], kind[sure], image[sure]
        kept = nms(boxes, score, kind + chances.shape[1] * image, 0.5)
        return boxes[kept], score[kept], kind[kept], image[kept]


def faster_rcnn_resnet50(small: bool) -> nn.Module:
    if small:
        return FasterRCNN((1, 1), 8, 16, 32, 64, 4, 12)
    return FasterRCNN((3, 4, 6, 3), 64, 256, 1024, 608, 80, 100)
