"""Models that partitioning is tried on: each from its own definition, with random weights from a fixed seed.

    model, inputs = MODELS["resnet18"].make(small=True), MODELS["resnet18"].inputs(small=True)

All are in eval mode, take part in no gradient, and go through `torch.jit.script`. A ``small`` one has every kind of layer at a fraction of
the width, depth and size.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models import bert, darknet, dlrm, faster_rcnn, gpt2, inception, mobilenet, resnet, ssd, unet, vgg
from models.compare import Error, detections, largest
from models.layers import settle

LOOPS = "how often its loops run and how many boxes it returns follow from the data"


@dataclass(frozen=True)
class Model:
    """``build(small)`` gives the module, ``draw(small, batch)`` its arguments. ``batch`` is the usual one, of the full configuration;
    ``export``: why `torch.export` cannot take it, nothing where it can; ``error(expected, found)``: how far two results are apart."""

    build: Callable[[bool], nn.Module]
    draw: Callable[[bool, int], tuple[Tensor, ...]]
    batch: int = 1
    export: str = ""
    error: Error = largest

    def make(self, small: bool = False) -> nn.Module:
        """The module, always the same one."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return settle(self.build(small), self.draw(small, 8 if small else 2))

    def inputs(self, small: bool = False, batch: int | None = None, seed: int = 1) -> tuple[Tensor, ...]:
        """Arguments for it, the same for the same seed; two examples of a small one unless ``batch`` says otherwise."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.draw(small, batch or (2 if small else self.batch))


MODELS: dict[str, Model] = {
    "resnet18": Model(resnet.resnet18, resnet.draw),
    "resnet50": Model(resnet.resnet50, resnet.draw),
    "inception_v3": Model(inception.inception_v3, inception.draw),
    "darknet53": Model(darknet.darknet53, darknet.draw),
    "mobilenet_v2": Model(mobilenet.mobilenet_v2, mobilenet.draw),
    "vgg19": Model(vgg.vgg19, vgg.draw),
    "ssd512_mobilenet": Model(ssd.ssd512_mobilenet, ssd.draw512, export=LOOPS, error=detections),
    "ssd300_resnet34": Model(ssd.ssd300_resnet34, ssd.draw300, export=LOOPS, error=detections),
    "faster_rcnn_resnet50": Model(faster_rcnn.faster_rcnn_resnet50, faster_rcnn.draw, export=LOOPS, error=detections),
    "bert_base": Model(bert.bert_base, bert.draw),
    "gpt2_small": Model(gpt2.gpt2_small, gpt2.draw),
    "unet": Model(unet.unet, unet.draw),
    "dlrm": Model(dlrm.dlrm, dlrm.draw, batch=128),
}
