"""Pages for tests: a small model, keys of counted tokens, bytes that a seed gives."""

import numpy as np
import pagoda_kv

LAYERS = 10
HEADS = 2
HEAD_DIM = 64
PAGE_TOKENS = 64
LAYER_BYTES = 2 * HEADS * PAGE_TOKENS * HEAD_DIM * 2  # K and V, 16 bits each
PAGE_BYTES = LAYERS * LAYER_BYTES


def model(name="python-test"):
    return pagoda_kv.ModelSpec(
        name,
        [pagoda_kv.LayerGroup(LAYERS, HEADS, HEAD_DIM)],
        rope_theta=10000.0,
        rope_rotary_dims=HEAD_DIM,
    )


def client(daemon, **options):
    made = pagoda_kv.Client(
        options.pop("target", daemon.listen),
        options.pop("model", model()),
        page_tokens=PAGE_TOKENS,
        reconnect_interval=0.05,
        **options,
    )
    made.wait_connected(10)
    return made


def tokens(count, first=0):
    return np.arange(first, first + count * PAGE_TOKENS, dtype=np.uint32)


def keys_of(scope, count, first=0):
    return pagoda_kv.key_chain(scope.root, tokens(count, first), PAGE_TOKENS)


def payload(seed):
    """Finite bf16 numbers, small ones."""
    words = np.random.default_rng(seed).integers(0x3C00, 0x3F80, PAGE_BYTES // 2, dtype=np.uint16)
    return words.view(np.uint8)


def split(data):
    """Into the segments of a raw16 page, which follow the rule of opaque ones."""
    runs = pagoda_kv.opaque_segment_layers(LAYERS, LAYER_BYTES)
    return [data[b * LAYER_BYTES : (b + n) * LAYER_BYTES] for b, n in runs]


def push(pusher, scope, keys, seeds=None, first=0, **options):
    """Page i of the chain holds payload(seeds[i])."""
    for i, key in enumerate(keys):
        pusher.push(
            scope,
            key,
            scope.root if i == 0 else keys[i - 1],
            split(payload(i if seeds is None else seeds[i])),
            parent_is_root=i == 0,
            token_ids=tokens(1, first + i * PAGE_TOKENS),
            base_position=i * PAGE_TOKENS,
            **options,
        )


def stored(one, count=3, first=0):
    """Has pages in the daemon: the scope and the keys."""
    scope = one.scope("private")
    keys = keys_of(scope, count, first)
    pusher = one.pusher()
    push(pusher, scope, keys, first=first)
    pusher.flush(10)
    assert pusher.stats()["failed"] == 0
    return scope, keys
