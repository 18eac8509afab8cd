"""Passes: rewritings of a whole model before it is cut, and the pipeline that they stand in."""
from __future__ import annotations

from tcjit.byoc.passes.batch_norm import fold_batch_norm
from tcjit.byoc.passes.common import share_common
from tcjit.byoc.passes.constants import fold_constants
from tcjit.byoc.passes.dead import remove_dead
from tcjit.byoc.passes.decompose import decompose
from tcjit.byoc.passes.fold_scalar_tensors import write_numbers
from tcjit.byoc.passes.functionalise import functionalise
from tcjit.byoc.passes.identities import remove_identities
from tcjit.byoc.passes.layout import channels_last
from tcjit.byoc.passes.pipeline import Pass, Pipeline

__all__ = ["Pass", "Pipeline", "standard"]


def standard() -> Pipeline:
    """The passes that models go through unless told otherwise.

    >>> print(standard())
    pass               level  requires  what it does
    write_numbers      1                constants without dimensions become numbers
    remove_identities  1                dropout in inference, x * 1, views of the same shape
    functionalise      1                in-place operations on what the model itself made give new tensors
    fold_constants     1                what depends on constants alone is computed once
    fold_batch_norm    2                batch norms go into the convolution or linear layer before them
    decompose          asked            linear, softmax, attention and more in simpler operations
    share_common       2                what is computed twice is computed once
    channels_last      3                convolutions, and what is between them, in channels last
    remove_dead        1                what nobody uses goes
    """
    return Pipeline(
        (
            Pass("write_numbers", write_numbers, about="constants without dimensions become numbers"),
            Pass("remove_identities", remove_identities, about="dropout in inference, x * 1, views of the same shape"),
            Pass("functionalise", functionalise, about="in-place operations on what the model itself made give new tensors"),
            Pass("fold_constants", fold_constants, about="what depends on constants alone is computed once"),
            Pass("fold_batch_norm", fold_batch_norm, level=2, about="batch norms go into the convolution or linear layer before them"),
            Pass("decompose", decompose, level=None, about="linear, softmax, attention and more in simpler operations"),
            Pass("share_common", share_common, level=2, about="what is computed twice is computed once"),
            Pass("channels_last", channels_last, level=3, about="convolutions, and what is between them, in channels last"),
            Pass("remove_dead", remove_dead, about="what nobody uses goes"),
        )
    )
