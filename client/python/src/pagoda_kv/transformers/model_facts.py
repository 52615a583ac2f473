"""What a Transformers model tells about its K and V: the page shape, and the identity under which
pages are shared."""

import hashlib
import json
import weakref
from typing import Any

import torch

from pagoda_kv import LayerGroup, ModelSpec, kernels

from .config import PagodaConfig

_ATTENTION_TYPES = ("full_attention", "sliding_attention")
# Of a model's tensors at that state: hashing them takes a while.
_revisions: "weakref.WeakKeyDictionary[torch.nn.Module, tuple[Any, str]]"
_revisions = weakref.WeakKeyDictionary()


def text_config(model: Any) -> Any:
    return model.config.get_text_config(decoder=True)


def page_shape(config: Any, page_tokens: int) -> kernels.PageShape:
    """Of a decoder's config. ValueError where its K and V are not rows of heads."""
    types = getattr(config, "layer_types", None) or ["full_attention"]
    other = sorted(set(types) - set(_ATTENTION_TYPES))
    if other or getattr(config, "num_kv_shared_layers", None):
        raise ValueError(
            f"{config.model_type} has layers of type {', '.join(other) or 'shared'}: pages hold K "
            "and V of every layer, as Llama-, Qwen- and Mistral-like models have them"
        )
    heads = config.num_attention_heads
    return kernels.PageShape(
        layer_count=config.num_hidden_layers,
        head_count=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        page_tokens=page_tokens,
    )


def model_spec(model: Any, config: PagodaConfig) -> ModelSpec:
    """Models whose specs are equal share pages."""
    text = text_config(model)
    shape = page_shape(text, config.page_tokens)
    rope = dict(getattr(text, "rope_parameters", None) or {})
    theta = float(rope.pop("rope_theta", None) or getattr(text, "rope_theta", None) or 0.0)
    if rope.get("rope_type", "default") == "default":
        rope.pop("rope_type", None)
    sliding = getattr(text, "sliding_window", None)
    types = getattr(text, "layer_types", None) or []
    # Pages computed in another number format are other pages.
    revision = config.weights_revision or weights_revision(model)
    return ModelSpec(
        f"transformers/{text.model_type}",
        [LayerGroup(shape.layer_count, shape.head_count, shape.head_dim)],
        weights_revision=f"{revision}/{str(model.dtype).removeprefix('torch.')}",
        kv_dtype="bf16",
        rope_theta=theta,
        rope_rotary_dims=int(shape.head_dim * float(rope.pop("partial_rotary_factor", 1) or 1)),
        rope_scaling=_short(json.dumps(rope, sort_keys=True)) if rope else "",
        attention_mode=f"sliding:{sliding}:{_short(','.join(types))}" if sliding else "dense",
    )


def weights_revision(model: torch.nn.Module) -> str:
    """SHA-256 of all weights as they are in memory now."""
    tensors = dict(model.named_parameters())
    tensors.update(model.named_buffers())
    state = tuple((name, x.data_ptr(), x._version) for name, x in sorted(tensors.items()))
    known = _revisions.get(model)
    if known is not None and known[0] == state:
        return known[1]
    digest = hashlib.sha256(b"pagoda/transformers-weights/v1")
    for name, tensor in sorted(tensors.items()):
        if tensor.is_meta:
            raise ValueError(f"{name} is not in memory to be hashed: set weights_revision")
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy())
    revision = digest.hexdigest()
    _revisions[model] = (state, revision)
    return revision


def _short(text: str) -> str:
    """Itself, or its hash where it is longer than an identity's texts may be."""
    return text if len(text) <= 200 else hashlib.sha256(text.encode()).hexdigest()
