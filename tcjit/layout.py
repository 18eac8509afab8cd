"""Layouts of tensors in memory, from their shapes and strides alone. Nothing here imports torch."""
from __future__ import annotations

from collections.abc import Sequence

DENSE = "dense "  # and the axes, the outermost in memory first


def layout_class(shape: Sequence[int], strides: Sequence[int]) -> str:
    """``contiguous``; the order of its axes for a tensor that fills its memory in another one; or a letter per dimension: 0 for stride 0 or
    extent 1, 1 for stride 1, n for any other stride.

    >>> layout_class((2, 3), (3, 1)), layout_class((2, 3), (1, 2)), layout_class((4, 1, 3), (0, 7, 2)), layout_class((2, 3), (1, 4))
    ('contiguous', 'dense 1,0', '00n', '1n')
    """
    if 0 in shape:
        return "contiguous"
    order = sorted((axis for axis, extent in enumerate(shape) if extent != 1), key=lambda axis: (-strides[axis], axis))
    expected = 1
    for axis in reversed(order):
        if strides[axis] != expected:
            return "".join("0" if extent == 1 or stride == 0 else "1" if stride == 1 else "n" for extent, stride in zip(shape, strides))
        expected *= shape[axis]
    if order == sorted(order):
        return "contiguous"
    single = [axis for axis, extent in enumerate(shape) if extent == 1]
    return DENSE + ",".join(map(str, (*single, *order)))


def memory_order(layout: str, axes: int) -> tuple[int, ...] | None:
    """The axes of a tensor without gaps, the outermost in memory first; None for a layout that leaves strides open.

    >>> memory_order("contiguous", 2), memory_order("dense 1,0", 2), memory_order("1n", 2)
    ((0, 1), (1, 0), None)
    """
    if layout == "contiguous":
        return tuple(range(axes))
    return tuple(map(int, layout.removeprefix(DENSE).split(","))) if layout.startswith(DENSE) else None


def fits(kernel_layout: str, shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a kernel made for ``kernel_layout`` reads a tensor of these strides rightly; its strides for ``n`` come at run time."""
    here = layout_class(shape, strides)
    if here == kernel_layout or memory_order(kernel_layout, len(shape)) is not None:
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
