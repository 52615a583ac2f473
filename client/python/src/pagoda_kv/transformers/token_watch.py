"""Tells a PagodaCache which tokens its K and V are of: a hook before a model's forward pass, which
reads `input_ids` and `attention_mask` and changes nothing."""

import inspect
import weakref
from typing import Any

import torch

_watched: "weakref.WeakSet[torch.nn.Module]" = weakref.WeakSet()


def watch(model: torch.nn.Module) -> None:
    """Once for a model; it stays."""
    if model in _watched:
        return
    names = list(inspect.signature(model.forward).parameters)

    def before_forward(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(zip(names, args, strict=False)) | kwargs
        cache = given.get("past_key_values")
        if hasattr(cache, "note_inputs"):
            cache.note_inputs(given.get("input_ids"), given.get("attention_mask"))

    model.register_forward_pre_hook(before_forward, with_kwargs=True)
    _watched.add(model)
