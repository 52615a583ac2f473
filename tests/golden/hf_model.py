"""The model in a GGUF file as Hugging Face objects: its tokenizer, and its weights dequantized.

Transformers' own GGUF loader is of no use here: its tokenizer does not split digits. So tensors and
tokenizer are put together by hand. The tokenizer needs `tokenizers` and `gguf`; the model also
`torch` (a CPU build will do) and `transformers`. No hub is asked.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

from gguf import GGUFReader, dequantize  # noqa: E402
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

CONTROL = 3
NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "token_embd": "model.embed_tokens", "output_norm": "model.norm",
         "output": "lm_head"}


def open_gguf(path):
    reader = GGUFReader(path)
    return reader, {key: field.contents() for key, field in reader.fields.items()}


def make_tokenizer(meta):
    """Byte-level BPE with SmolLM's digit splitting; control tokens are recognized in text."""
    assert meta["tokenizer.ggml.model"] == "gpt2" and meta["tokenizer.ggml.pre"] == "smollm"
    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=merges,
                                     fuse_unk=False, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    types = meta["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)
                                  for text, kind in zip(tokens, types) if kind == CONTROL])
    return tokenizer


def make_model(reader, meta):
    """LlamaForCausalLM in float32 with the dequantized weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = meta["llama.attention.head_count"]
    kv_heads = meta["llama.attention.head_count_kv"]
    hidden = meta["llama.embedding_length"]

    def unpermute(weight, head_count):
        # The GGUF converter interleaves the two halves that RoPE rotates together, per head.
        rows, columns = weight.shape
        return (weight.reshape(head_count, rows // head_count // 2, 2, columns)
                .swapaxes(1, 2).reshape(rows, columns))

    state = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        parts = tensor.name.split(".")
        name = NAMES[parts[-2]]
        if parts[0] == "blk":
            if parts[2] == "attn_q":
                weight = unpermute(weight, heads)
            if parts[2] == "attn_k":
                weight = unpermute(weight, kv_heads)
            name = f"model.layers.{parts[1]}.{name}"
        state[name + ".weight"] = torch.from_numpy(weight.copy())
    tied = "lm_head.weight" not in state
    theta = meta["llama.rope.freq_base"]
    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=meta["llama.feed_forward_length"],
        num_hidden_layers=meta["llama.block_count"], num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=hidden // heads,
        max_position_embeddings=meta["llama.context_length"],
        rms_norm_eps=meta["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": theta}, tie_word_embeddings=tied,
        vocab_size=len(meta["tokenizer.ggml.tokens"]), attention_bias=False, mlp_bias=False,
        attn_implementation="eager")
    model = LlamaForCausalLM(config).eval().to(torch.float32)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model
