#!/usr/bin/env python3
"""SmolLM2-135M-Instruct, GGUF (deploy/fetch_model.sh) -> a folder that vLLM and Transformers load.

usage: convert_smollm2.py GGUF FOLDER [float32|bfloat16]    about 15 s, no network

Written directly, because Transformers reads this GGUF but cannot save it, and the tokenizer that it
makes of it does not split digits. Token ids are those of llama.cpp.
"""

import json
import os
import sys
import time

import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
CONTROL = 3  # a token's type in GGUF


class Model:
    def __init__(self, path):
        self.reader = GGUFReader(path)
        if (self.meta("general.architecture"), self.meta("tokenizer.ggml.model")) != (
            "llama", "gpt2",
        ):
            sys.exit(f"{path} is not the model that this script knows")
        self.heads = self.meta("llama.attention.head_count")
        self.kv_heads = self.meta("llama.attention.head_count_kv")
        self.layers = self.meta("llama.block_count")
        self.tokens = self.meta("tokenizer.ggml.tokens")
        self.bos = self.meta("tokenizer.ggml.bos_token_id")
        self.eos = self.meta("tokenizer.ggml.eos_token_id")
        self.pad = self.meta("tokenizer.ggml.padding_token_id", self.eos)
        self.unknown = self.meta("tokenizer.ggml.unknown_token_id", 0)
        self.context = self.meta("llama.context_length")

    def meta(self, key, default=None):
        return self.reader.fields[key].contents() if key in self.reader.fields else default


def unpermute(weight, heads):
    """llama.cpp interleaves the two halves that RoPE rotates."""
    rows = weight.reshape(heads, weight.shape[0] // heads // 2, 2, weight.shape[1])
    return rows.swapaxes(1, 2).reshape(weight.shape)


def tensors_of(model, dtype):
    tensors = {}
    for tensor in model.reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[2] == "attn_q":
                weight = unpermute(weight, model.heads)
            if parts[2] == "attn_k":
                weight = unpermute(weight, model.kv_heads)
            name = f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"
        else:
            name = TOP[tensor.name]
        tensors[name] = torch.from_numpy(weight.copy()).to(dtype).contiguous()
    assert len(tensors) == 9 * model.layers + 2, "embeddings are tied: there is no output.weight"
    return tensors


def config_of(model, dtype):
    hidden = model.meta("llama.embedding_length")
    theta = model.meta("llama.rope.freq_base")
    return dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu",
        hidden_size=hidden, intermediate_size=model.meta("llama.feed_forward_length"),
        num_hidden_layers=model.layers, num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads, head_dim=hidden // model.heads,
        max_position_embeddings=model.context,
        rms_norm_eps=model.meta("llama.attention.layer_norm_rms_epsilon"), rope_theta=theta,
        rope_parameters=dict(rope_type="default", rope_theta=theta), tie_word_embeddings=True,
        vocab_size=len(model.tokens), attention_bias=False, mlp_bias=False,
        bos_token_id=model.bos, eos_token_id=model.eos, pad_token_id=model.pad,
        torch_dtype=dtype, dtype=dtype, use_cache=True,
    )


def tokenizer_of(model):
    """Every digit alone, then GPT-2's expression, then BPE over bytes."""
    merges = [tuple(pair.split(" ", 1)) for pair in model.meta("tokenizer.ggml.merges")]
    vocabulary = {text: index for index, text in enumerate(model.tokens)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False))
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    types = model.meta("tokenizer.ggml.token_type")
    special = [text for text, kind in zip(model.tokens, types) if kind == CONTROL]
    made.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in special])
    return made, special


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__.split("\n\n")[1])
    began = time.monotonic()
    model, folder = Model(sys.argv[1]), sys.argv[2]
    dtype = sys.argv[3] if len(sys.argv) > 3 else "float32"
    os.makedirs(folder, exist_ok=True)
    tokenizer, special = tokenizer_of(model)

    def write(name, content):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
            json.dump(content, stream, indent=1, ensure_ascii=False)

    write("config.json", config_of(model, dtype))
    write("generation_config.json", dict(
        bos_token_id=model.bos, eos_token_id=model.eos, pad_token_id=model.pad))
    write("tokenizer_config.json", dict(
        tokenizer_class="PreTrainedTokenizerFast", bos_token=model.tokens[model.bos],
        eos_token=model.tokens[model.eos], pad_token=model.tokens[model.pad],
        unk_token=model.tokens[model.unknown], model_max_length=model.context,
        clean_up_tokenization_spaces=False, add_prefix_space=False,
        additional_special_tokens=special, chat_template=model.meta("tokenizer.chat_template"),
    ))
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    # Last, under another name until it is whole: a folder with it is complete.
    part = os.path.join(folder, "model.safetensors.part")
    save_file(tensors_of(model, getattr(torch, dtype)), part, metadata={"format": "pt"})
    os.replace(part, os.path.join(folder, "model.safetensors"))
    print(f"{folder}: {dtype}, {model.layers} layers, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
