"""Layouts of tensors in memory, from their shapes and strides alone. Nothing here imports torch."""
from __future__ import annotations

from collections.abc import Sequence


def layout_class(shape: Sequence[int], strides: Sequence[int]) -> str:
    """``contiguous``, or a letter per dimension: 0 for stride 0 or extent 1, 1 for stride 1, n for any other stride.

    >>> layout_class((2, 3), (3, 1)), layout_class((2, 3), (1, 2)), layout_class((4, 1, 3), (0, 7, 2))
    ('contiguous', '1n', '00n')
    """
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != expected:
            break
        expected *= extent
    else:
        return "contiguous"
    if 0 in shape:
        return "contiguous"
    return "".join("0" if extent == 1 or stride == 0 else "1" if stride == 1 else "n" for extent, stride in zip(shape, strides))


def fits(kernel_layout: str, shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a kernel made for ``kernel_layout`` reads a tensor of these strides rightly; its strides for ``n`` come at run time."""
    here = layout_class(shape, strides)
    if here == kernel_layout or kernel_layout == "contiguous":
        return here == kernel_layout
    wanted = {"0": (0,), "1": (1,)}
    return all(extent == 1 or letter == "n" or stride in wanted[letter] for letter, extent, stride in zip(kernel_layout, shape, strides))


def self_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements may be one: False is certain, True also covers a few layouts that nobody uses.

    >>> self_overlap((2, 3), (3, 1)), self_overlap((2, 3), (0, 1)), self_overlap((3, 3), (1, 1))
    (False, True, True)
    """
    if 0 in shape:
        return False
    reach = 0
    for stride, extent in sorted((stride, extent) for stride, extent in zip(strides, shape) if extent > 1):
        if stride <= reach:
            return True
        reach += (extent - 1) * stride
    return False
