"""Gradients of the fused operators of ``vendor``, which PyTorch differentiates wrongly without an error, or not at all.

Registered when a partitioned model that has such operators is called where gradients may be recorded: from then on the operators are,
while they are, the operations that they fuse. Below autograd nothing changes.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "swish": functional.silu,
}
_LIBRARIES: list[torch.library.Library] = []
_LOCK = Lock()


def _activated(y: Tensor, attr: str | None, scalars: Sequence[Any] = (), algorithm: str | None = None) -> Tensor:
    """What oneDNN's words for an activation say; PyTorch's own inductor has some more of them."""
    if attr in (None, "none"):
        return y
    if attr == "gelu":
        return functional.gelu(y, approximate=algorithm or "none")
    if attr in ("hardtanh", "leaky_relu"):
        return getattr(functional, attr)(y, *scalars)  # type: ignore[no-any-return]
    return _PLAIN[str(attr)](y)


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Any, stride: Any, dilation: Any, groups: int) -> Tensor:
    return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * (weight.dim() - 2), groups)


def _convolution(x: Tensor, weight: Tensor, bias: Any, padding: Any, stride: Any, dilation: Any, groups: int, *behind: Any) -> Tensor:
    return _activated(_convolved(x, weight, bias, padding, stride, dilation, groups), *behind)


def _convolution_sum(
    x: Tensor, other: Tensor, weight: Tensor, bias: Any, padding: Any, stride: Any, dilation: Any, groups: int, *behind: Any
) -> Tensor:
    _, alpha, *act = behind  # the only word is "add"
    total = _convolved(x, weight, bias, padding, stride, dilation, groups) + other * (1 if alpha is None else alpha)
    return _activated(total, *act)


def _linear(x: Tensor, weight: Tensor, bias: Any, attr: str, scalars: Any, algorithm: str | None) -> Tensor:
    return _activated(functional.linear(x, weight, bias), attr, scalars, algorithm)


def _linear_sum(x: Tensor, other: Tensor, weight: Tensor, bias: Any, attr: str) -> Tensor:
    return functional.linear(x, weight, bias) + other


def _addmm(bias: Tensor, left: Tensor, right: Tensor, *, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False) -> Tensor:
    return _activated(torch.addmm(bias, left, right, beta=beta, alpha=alpha), "gelu" if use_gelu else "relu")


def _cudnn(x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    return torch.relu(_convolved(x, weight, bias, padding, stride, dilation, groups))


def _cudnn_sum(x: Tensor, weight: Tensor, other: Tensor, alpha: Any, bias: Any, stride: Any, padding: Any, *more: Any) -> Tensor:
    return torch.relu(_convolved(x, weight, bias, padding, stride, *more) + other * (1 if alpha is None else alpha))


# by operator: the operations that it fuses, and the keys under which autograd finds them
_FUSED: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "mkldnn::_convolution_pointwise": (_convolution, ("Autograd",)),
    "mkldnn::_convolution_pointwise.binary": (_convolution_sum, ("Autograd",)),
    "mkldnn::_linear_pointwise": (_linear, ("Autograd",)),
    "mkldnn::_linear_pointwise.binary": (_linear_sum, ("Autograd",)),
    "aten::_addmm_activation": (_addmm, ("AutogradCPU", "AutogradCUDA")),
    "aten::cudnn_convolution_relu": (_cudnn, ("AutogradCUDA",)),
    "aten::cudnn_convolution_add_relu": (_cudnn_sum, ("AutogradCUDA",)),
}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # a tracer calls it, and does not look into it
def register() -> bool:
    """Makes autograd know the operators of this build of PyTorch, once in a process."""
    with _LOCK:
        if not _LIBRARIES:
            _LIBRARIES.extend(torch.library.Library(name, "IMPL") for name in ("mkldnn", "aten"))  # type: ignore[no-untyped-call]
            for name, (operations, keys) in _FUSED.items():
                space, _, rest = name.partition("::")
                packet, _, overload = rest.partition(".")
                operator = getattr(getattr(getattr(torch.ops, space), packet, None), overload or "default", None)
                if operator is not None:
                    library = _LIBRARIES[space == "aten"]
                    for key in keys:
                        library.impl(rest, _kernel(operator, operations), key, allow_override=True)  # type: ignore[no-untyped-call]
    return True


def _kernel(operator: Any, operations: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def autograd(*args: Any, **named: Any) -> Tensor:
        recording = torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in args)
        if recording or forward_ad._current_level >= 0:
            return operations(*args, **named)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args, **named)  # type: ignore[no-any-return]

    return autograd
