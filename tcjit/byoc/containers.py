"""Classes of other packages that hold tensors, which those packages tell PyTorch of only when they are asked to."""
from __future__ import annotations

import importlib
import sys
from contextlib import suppress

from torch.utils import _pytree as pytree

# by the module and name of a class: the module and name of the function that registers it as a pytree
_REGISTERED_BY = {
    ("transformers.cache_utils", "DynamicCache"): ("transformers.integrations.executorch", "register_dynamic_cache_export_support"),
}


def register() -> None:
    """Registers such classes of packages that are loaded; without their functions they stay unknown."""
    for (home, name), (module, function) in _REGISTERED_BY.items():
        kind = getattr(sys.modules.get(home), name, None)
        if kind is not None and kind not in pytree.SUPPORTED_NODES:
            with suppress(ImportError, AttributeError):
                getattr(importlib.import_module(module), function)()
