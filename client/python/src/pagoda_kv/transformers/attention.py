"""The attention implementation "pagoda": attends on the pages of a PagodaCache as they are.

    register()                                    # importing pagoda_kv.transformers does
    model.set_attn_implementation("pagoda")       # or from_pretrained(..., attn_implementation=...)

Where a cache keeps pages (precision below raw16) and rows see what causal attention sees, left
padding included, the kernels read the pages. Everything else, raw16 and other masks, is computed by
"sdpa" on dense K and V, exactly as without Pagoda.
"""

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "pagoda"
# What some models ask of attention and "sdpa" would leave out without a word.
_UNKNOWN = ("softcap", "s_aux")


def register() -> None:
    """Makes the name known to Transformers; as often as you like."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    *args: Any,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> torch.Tensor | None:
    """The mask of "sdpa", which also knows whether it is causal but for left padding."""
    mask = sdpa_mask(
        batch_size, q_length, kv_length, q_offset, kv_offset, *args, device=device, **kwargs
    )
    if mask is None or kv_offset:
        return mask
    queries = torch.arange(q_length, device=mask.device)[:, None] + int(q_offset)
    columns = torch.arange(kv_length, device=mask.device)[None, :]
    # Columns that no query sees, from the left.
    seen = mask[:, 0].any(dim=1)
    pads = torch.where(seen.any(dim=1), seen.int().argmax(dim=1), kv_length)
    causal = (columns <= queries)[None] & (columns[None] >= pads[:, None, None])
    if torch.equal(mask[:, 0], causal):
        mask._pagoda_pads = pads.tolist()
    return mask


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    for name in _UNKNOWN:
        if kwargs.get(name) is not None:
            raise ValueError(
                f'{type(module).__name__} needs attention with {name}, which "{NAME}" has not: use '
                'attn_implementation="eager"; a PagodaCache works with that, too'
            )
    states = getattr(key, "_pagoda_states", None)  # set by PagodaCache.update()
    if states is not None:
        causal = kwargs.get("is_causal", getattr(module, "is_causal", True))
        plain = causal and not dropout and kwargs.get("position_bias") is None
        out = states.attend(query, attention_mask, scaling) if plain else None
        if out is not None:
            return out, None
        key, value = states.dense(query.dtype, query.device)
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
    )
