"""What this engine's KV bytes are: which pages, of which shape, under which identity.

Scheduler and workers make it from the same configuration and must come to the same: it says which
pages are looked up and which are written. An engine that differs in a fact that matters to the
bytes, or to the block hashes, gets another identity, and the two never meet.

A page is one record of the daemon: `page_tokens` tokens, all layers, one kv head. So an engine of
any tensor parallel size reads what any other wrote.
"""

import dataclasses
import hashlib
import json
import os
from typing import Any

from pagoda_kv.vllm import weights
from pagoda_kv.vllm.config import ConnectorConfig

RAW16_TYPES = {"bfloat16": "bf16", "float16": "f16"}
PAGE_TOKENS = (16, 32, 64, 128, 256)  # that the daemon stores
PAGE_TOKENS_MIN = 32  # of raw16 pages that may be encoded
PAGE_TOKENS_WANTED = 64


class Unsupported(Exception):
    """This engine's cache is not one that we store; the text says why."""


@dataclasses.dataclass(frozen=True)
class CachePlan:
    model: str
    weights_revision: str
    layer_names: tuple[str, ...]
    kv_heads: int  # of the model, over all ranks
    head_dim: int
    block_tokens: int  # of an engine block
    page_tokens: int  # a multiple of it
    hash_tokens: int  # that one block hash stands for
    layer_bytes: int  # of one layer of one head of one page
    kv_dtype: str
    precision: str  # that pages are pushed in: "opaque" or "raw16"
    precision_min: str  # that a hit must have
    opaque_layout: str = ""
    rope: dict[str, Any] = dataclasses.field(default_factory=dict)
    tp_size: int = 1
    tp_rank: int = 0

    @property
    def blocks_per_page(self) -> int:
        return self.page_tokens // self.block_tokens

    @property
    def page_bytes(self) -> int:
        return self.layer_bytes * len(self.layer_names)

    @property
    def rank_heads(self) -> range:
        """The model's kv heads in this rank's cache."""
        if self.tp_size > self.kv_heads:
            head = self.tp_rank // (self.tp_size // self.kv_heads)
            return range(head, head + 1)
        count = self.kv_heads // self.tp_size
        return range(self.tp_rank * count, (self.tp_rank + 1) * count)

    @property
    def rank_pushes(self) -> bool:
        """Of ranks that hold the same head one pushes it."""
        replicas = max(1, self.tp_size // self.kv_heads)
        return self.tp_rank % replicas == 0

    @property
    def pushing_ranks(self) -> int:
        return min(self.tp_size, self.kv_heads)

    def page_hashes(self, block_hashes: Any) -> list[bytes]:
        """A page is known by the hash of its last block, which stands for all before it, too."""
        step = self.page_tokens // self.hash_tokens
        return [bytes(block_hashes[i]) for i in range(step - 1, len(block_hashes), step)]

    def model_spec(self, core: Any) -> Any:
        group = core.LayerGroup(len(self.layer_names), self.kv_heads, self.head_dim)
        return core.ModelSpec(
            self.model,
            [group],
            weights_revision=self.weights_revision,
            kv_dtype=self.kv_dtype,
            opaque_layout=self.opaque_layout,
            **self.rope,
        )


def make_plan(vllm_config: Any, kv_cache_config: Any, config: ConnectorConfig) -> CachePlan:
    """Raises Unsupported with the reason where this cache cannot be stored."""
    spec, kv_heads = _only_group(vllm_config, kv_cache_config)
    parallel, model_config = vllm_config.parallel_config, vllm_config.model_config
    dtype = str(spec.dtype).removeprefix("torch.")
    as_pages = _is_known(vllm_config, spec, dtype) and config.precision != "opaque"
    _check_precision(vllm_config, config, spec, dtype, as_pages)
    per_page = _blocks_per_page(spec.block_size) if as_pages else 1
    if spec.block_size * per_page not in PAGE_TOKENS:
        raise Unsupported(
            f"its blocks have {spec.block_size} tokens, {', '.join(map(str, PAGE_TOKENS))} are "
            "stored"
        )
    layer_bytes = spec.page_size_bytes // spec.num_heads * per_page
    name = model_config.model
    if os.path.isdir(name):
        name = os.path.basename(os.path.normpath(name))  # wherever it lies: weights tell it apart
    common = dict(
        model=config.model or name,
        weights_revision=_revision(model_config, config),
        layer_names=tuple(kv_cache_config.kv_cache_groups[0].layer_names),
        kv_heads=kv_heads,
        head_dim=spec.head_size,
        block_tokens=spec.block_size,
        page_tokens=spec.block_size * per_page,
        hash_tokens=getattr(kv_cache_config, "hash_block_size", None) or spec.block_size,
        layer_bytes=layer_bytes,
        tp_size=parallel.tensor_parallel_size,
        tp_rank=parallel.rank % parallel.tensor_parallel_size,
    )
    hashes = _hash_fact(vllm_config, spec.block_size)
    if as_pages:
        least = config.precision if config.precision in ("q8", "q4") else "raw16"
        return CachePlan(
            kv_dtype=RAW16_TYPES[dtype], precision="raw16", precision_min=least,
            opaque_layout=f"vllm/{hashes}",  # not the engine's layout, but its hashes
            rope=_rope(model_config), **common,
        )
    facts = (
        "vllm", _vllm_version(), vllm_config.device_config.device_type,
        _layout_name(kv_cache_config), _inner_layout(vllm_config, spec), dtype,
        vllm_config.cache_config.cache_dtype, f"block{spec.block_size}", f"head{spec.head_size}",
        f"layer{layer_bytes}", hashes,
    )
    return CachePlan(
        kv_dtype="opaque", precision="opaque", precision_min="opaque",
        opaque_layout="/".join(map(str, facts)), rope={"rope_style": "none"}, **common,
    )


def _only_group(vllm_config: Any, kv_cache_config: Any) -> tuple[Any, int]:
    """The spec of the one group of full attention, and the model's kv heads."""
    parallel = vllm_config.parallel_config
    for name in ("pipeline_parallel_size", "decode_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise Unsupported(f"{name} is {getattr(parallel, name)}, only 1 is stored")
    tp_size = parallel.tensor_parallel_size
    if parallel.world_size != tp_size:
        raise Unsupported(
            f"{parallel.world_size} workers with tensor_parallel_size {tp_size}, only tensor "
            "parallel workers are stored"
        )
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise Unsupported(f"the model has {len(groups)} KV cache groups, only one is stored")
    spec = groups[0].kv_cache_spec
    kinds = {kind.__name__ for kind in type(spec).__mro__}
    if "FullAttentionSpec" not in kinds:
        raise Unsupported(f"its cache is {type(spec).__name__}, only full attention is stored")
    kv_heads = vllm_config.model_config.get_total_num_kv_heads()
    if "MLAAttentionSpec" in kinds:
        kv_heads = 1  # one latent for all, on every rank
    if (tp_size > kv_heads and tp_size % kv_heads) or (kv_heads > tp_size and kv_heads % tp_size):
        raise Unsupported(f"{kv_heads} kv heads do not divide over {tp_size} ranks")
    rank_heads = max(1, kv_heads // tp_size)
    if spec.num_heads != rank_heads or spec.page_size_bytes % rank_heads:
        raise Unsupported(f"a rank's cache has {spec.num_heads} heads, {rank_heads} expected")
    return spec, kv_heads


def _is_known(vllm_config: Any, spec: Any, dtype: str) -> bool:
    """K and V of a token beside each other, 16 bits each and nothing else: GPUs' NHD and HND."""
    cache_dtype = vllm_config.cache_config.cache_dtype
    return (
        vllm_config.device_config.device_type != "cpu"
        and type(spec).__name__ == "FullAttentionSpec"
        and cache_dtype in ("auto", *RAW16_TYPES)
        and dtype in RAW16_TYPES
        and getattr(spec, "head_size_v", spec.head_size) == spec.head_size
        and spec.page_size_bytes == spec.num_heads * spec.block_size * 2 * spec.head_size * 2
    )


def _check_precision(
    vllm_config: Any, config: ConnectorConfig, spec: Any, dtype: str, as_pages: bool
) -> None:
    wanted = config.precision
    if wanted in ("raw16", "q8", "q4") and not as_pages:
        raise ValueError(
            f"precision is {wanted!r}, but this cache ({vllm_config.device_config.device_type}, "
            f"{dtype}, block size {spec.block_size}) is of a layout that only the engine knows: "
            'give "auto" or "opaque"'
        )
    if wanted in ("q8", "q4") and dtype != "bfloat16":
        raise ValueError(
            f"precision is {wanted!r}, but this cache is {dtype}: encoded pages are read into "
            'bfloat16 caches, give "raw16"'
        )


def _blocks_per_page(block: int) -> int:
    if block >= PAGE_TOKENS_MIN:
        return 1
    return max(1, PAGE_TOKENS_WANTED // block)


def _revision(model_config: Any, config: ConnectorConfig) -> str:
    """The weights, and what else the engine computes K and V by."""
    weights_part = config.weights_revision
    try:
        weights_part = weights_part or weights.fingerprint(_weights_folder(model_config))
    except OSError:
        weights_part = f"unread@{model_config.revision or 'main'}"
    hf_config = getattr(model_config, "hf_config", None)
    facts = hf_config.to_dict() if hasattr(hf_config, "to_dict") else {}
    for transient in ("_name_or_path", "transformers_version", "torch_dtype", "dtype"):
        facts.pop(transient, None)
    shape = json.dumps(
        [facts, str(model_config.dtype), str(model_config.quantization)],
        sort_keys=True,
        default=str,
    )
    return f"{weights_part}-{hashlib.sha256(shape.encode()).hexdigest()[:16]}"


def _weights_folder(model_config: Any) -> str:
    if os.path.isdir(model_config.model):
        return model_config.model
    try:
        from huggingface_hub import snapshot_download

        return snapshot_download(
            model_config.model, revision=model_config.revision, local_files_only=True
        )
    except Exception:  # not there, or another version of that library: known by its name alone
        return model_config.model


def _vllm_version() -> str:
    import vllm

    return getattr(vllm, "__version__", "unknown")


def _layout_name(kv_cache_config: Any) -> str:
    return str(getattr(kv_cache_config, "kv_cache_layout", None) or "default")


def _inner_layout(vllm_config: Any, spec: Any) -> str:
    """How the kernels of this machine pack a block's inside."""
    if vllm_config.device_config.device_type != "cpu":
        return "plain"
    import platform

    try:
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        isa = _get_attn_isa(
            spec.dtype, spec.block_size, spec.head_size, vllm_config.cache_config.cache_dtype
        )
    except (ImportError, TypeError, NotImplementedError) as error:
        raise Unsupported(
            f"this vLLM does not say how its CPU kernels pack a block ({error})"
        ) from error
    return f"{platform.machine()}-{isa}"


def _hash_fact(vllm_config: Any, block: int) -> str:
    """A known answer of the engine's block hash: engines that hash otherwise never meet."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    name = vllm_config.cache_config.prefix_caching_hash_algo
    function = get_hash_fn_by_name(name)
    seed = kv_cache_utils.resolve_none_hash_seed(function)
    if seed != kv_cache_utils.resolve_none_hash_seed(function):
        # Random in each process: what this engine stores is for this engine alone.
        return f"{name}-random-{vllm_config.kv_transfer_config.engine_id}"
    answer = function((function(seed), tuple(range(block)), None))
    return f"{name}-{bytes(answer).hex()[:16]}"


def hashes_are_shared(plan: CachePlan) -> bool:
    return "-random-" not in plan.opaque_layout


def _rope(model_config: Any) -> dict[str, Any]:
    hf_config = getattr(model_config, "hf_text_config", model_config.hf_config)
    parameters = getattr(hf_config, "rope_parameters", None) or {}
    theta = parameters.get("rope_theta") or getattr(hf_config, "rope_theta", 0.0) or 0.0
    scaling = {k: v for k, v in parameters.items() if k != "rope_theta" and v != "default"}
    head_dim = getattr(hf_config, "head_dim", None) or 0
    partial = getattr(hf_config, "partial_rotary_factor", None) or 1.0
    return dict(
        rope_style="half_split" if theta else "none",
        rope_theta=float(theta),
        rope_rotary_dims=int(head_dim * partial) if theta else 0,
        rope_scaling=json.dumps(scaling, sort_keys=True, default=str) if scaling else "",
    )
