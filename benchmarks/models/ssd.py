"""SSD: Liu and others, "SSD: Single Shot MultiBox Detector", 2015, arXiv 1512.02325, on a MobileNet (512 x 512 pixels, 20 classes) and on a
ResNet-34 (300 x 300, 80 classes, as in MLPerf). (B, 3, S, S) -> boxes (K, 4), scores (K,), classes (K,), image of each (K,)."""
from __future__ import annotations

import torch
from torch import Tensor, nn

from models.boxes import decode, grid, nms, shape
from models.layers import ConvNorm, images
from models.mobilenet import separable
from models.resnet import Basic, stage, stem

draw512, draw300 = images(512, 64), images(300, 64)


class SSD(nn.Module):
    """Stages, of each of which two convolutions predict classes and boxes around every place of its result.

    ``widths`` are those of the stages' results, ``ratios`` those of the priors at each, besides 1; class 0 is the background. Of the
    ``candidates`` best boxes of an image those stay whose score is above ``sure`` and that no better one covers.
    """

    def __init__(
        self,
        stages: list[nn.Module],
        widths: list[int],
        ratios: list[tuple[float, ...]],
        pixels: int,
        classes: int,
        sure: float = 0.1,
        candidates: int = 200,
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.classes, self.sure, self.candidates = classes + 1, sure, candidates
        self.labels, self.shifts = nn.ModuleList(), nn.ModuleList()
        priors = []
        sizes = [pixels * (0.1 + 0.8 * number / len(stages)) for number in range(len(stages) + 1)]
        x = torch.zeros(1, 3, pixels, pixels)
        for number, (make, width, beside) in enumerate(zip(self.stages.eval(), widths, ratios)):
            shapes = [shape(sizes[number], ratio) for ratio in (1.0, *beside)]
            shapes.append(shape((sizes[number] * sizes[number + 1]) ** 0.5, 1.0))
            with torch.no_grad():
                x = make(x)
            priors.append(grid(x.shape[2], x.shape[3], shapes, float(pixels)))
            self.labels.append(nn.Conv2d(width, len(shapes) * self.classes, 3, padding=1))
            self.shifts.append(nn.Conv2d(width, len(shapes) * 4, 3, padding=1))
        self.register_buffer("priors", torch.cat(priors))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        batch, pixels = x.shape[0], x.shape[3]
        logits, deltas = [], []
        for make, label, shift in zip(self.stages, self.labels, self.shifts):
            x = make(x)
            logits.append(label(x).permute(0, 2, 3, 1).reshape(batch, -1, self.classes))
            deltas.append(shift(x).permute(0, 2, 3, 1).reshape(batch, -1, 4))
        chances = torch.softmax(torch.cat(logits, 1), 2)
        places = decode(self.priors, torch.cat(deltas, 1)).clamp(0.0, float(pixels))
        boxes, scores, kinds, owners = [], [], [], []
        for image in range(batch):
            score, kind = chances[image, :, 1:].max(1)
            score, best = score.topk(min(self.candidates, score.numel()))
            sure = score > self.sure
            score, best = score[sure], best[sure]
            box, kind = places[image][best], kind[best]
            kept = nms(box, score, kind, 0.45)
            boxes.append(box[kept])
            scores.append(score[kept])
            kinds.append(kind[kept])
            owners.append(torch.full_like(kept, image))
        return torch.cat(boxes), torch.cat(scores), torch.cat(kinds), torch.cat(owners)


def ssd512_mobilenet(small: bool) -> nn.Module:
    """On MobileNet's layers 11 and 13 and four more stages."""
    if small:
        first = nn.Sequential(ConvNorm(3, 8, 3, 2), separable(8, 16, 2))
        return SSD([first, extra(16, 16, norm=True)], [16, 16], [(2.0, 0.5)] * 2, 64, 4, 0.6, 30)
    layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2), separable(32, 64), separable(64, 128, 2), separable(128, 128)]
    layers += [separable(128, 256, 2), separable(256, 256), separable(256, 512, 2), *(separable(512, 512) for _ in range(5))]
    second = nn.Sequential(separable(512, 1024, 2), separable(1024, 1024))
    more = [extra(inside, outside, norm=True) for inside, outside in ((1024, 512), (512, 512), (512, 256), (256, 256))]
    few, many = (2.0, 0.5), (2.0, 0.5, 3.0, 1 / 3)
    return SSD([nn.Sequential(*layers), second, *more], [512, 1024, 512, 512, 256, 256], [few, many, many, many, few, few], 512, 20)


def ssd300_resnet34(small: bool) -> nn.Module:
    """On the third stage of a ResNet-34, whose stride is left out, and five more stages."""
    few, many = (2.0, 0.5), (2.0, 0.5, 3.0, 1 / 3)
    if small:
        return SSD([nn.Sequential(stem(8), stage(Basic, 8, 16, 2, 1)), extra(16, 16)], [16, 16], [few, many], 64, 4, 0.6, 30)
    base = nn.Sequential(stem(64), stage(Basic, 64, 64, 3, 1), stage(Basic, 64, 128, 4, 2), stage(Basic, 128, 256, 6, 1))
    more = [extra(256, 512), extra(512, 512), extra(512, 256), extra(256, 256, stride=1), extra(256, 256, stride=1)]
    return SSD([base, *more], [256, 512, 512, 256, 256, 256], [few, many, many, many, few, few], 300, 80)


def extra(inside: int, outside: int, *, stride: int = 2, norm: bool = False) -> nn.Sequential:
    """A stage after the backbone: 1x1 to half the width, 3x3 to half the size, or without padding where the stride is 1."""
    half, around = outside // 2, stride - 1
    if norm:
        return nn.Sequential(ConvNorm(inside, half, 1), ConvNorm(half, outside, 3, stride, padding=around))
    last = nn.Conv2d(half, outside, 3, stride, around)
    return nn.Sequential(nn.Conv2d(inside, half, 1), nn.ReLU(inplace=True), last, nn.ReLU(inplace=True))
