#!/usr/bin/env python3
"""Makes the tiny random Llama beside this script, and with plain numpy what it answers.

Written from Hugging Face's modeling_llama.py, step by step, to compare examples/llama with.
Needs `pip install numpy safetensors`.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

HERE = Path(__file__).parent
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "rope_scaling": None,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "torch_dtype": "float32",
}


def rms_norm(x, weight):
    variance = np.mean(x**2, axis=-1, keepdims=True)
    return weight * (x / np.sqrt(variance + CONFIG["rms_norm_eps"]))


def silu(x):
    return x / (1 + np.exp(-x))


def rotate_half(x):
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], axis=-1)


def forward(weights, tokens):
    heads, kv_heads = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
    dim = CONFIG["head_dim"]
    batch, length = tokens.shape

    inv_freq = 1.0 / CONFIG["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    freqs = np.outer(np.arange(length), inv_freq)
    emb = np.concatenate([freqs, freqs], axis=-1)
    cos, sin = np.cos(emb), np.sin(emb)
    mask = np.triu(np.full((length, length), -np.inf), k=1)

    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(CONFIG["num_hidden_layers"]):
        w = lambda name: weights[f"model.layers.{layer}.{name}.weight"]
        split = lambda y, n: y.reshape(batch, length, n, dim).transpose(0, 2, 1, 3)
        h = rms_norm(x, w("input_layernorm"))
        q = split(h @ w("self_attn.q_proj").T, heads)
        k = split(h @ w("self_attn.k_proj").T, kv_heads)
        v = split(h @ w("self_attn.v_proj").T, kv_heads)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        k = np.repeat(k, heads // kv_heads, axis=1)
        v = np.repeat(v, heads // kv_heads, axis=1)
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(dim) + mask
        probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
        probs /= probs.sum(axis=-1, keepdims=True)
        h = (probs @ v).transpose(0, 2, 1, 3).reshape(batch, length, heads * dim)
        x = x + h @ w("self_attn.o_proj").T
        h = rms_norm(x, w("post_attention_layernorm"))
        h = silu(h @ w("mlp.gate_proj").T) * (h @ w("mlp.up_proj").T)
        x = x + h @ w("mlp.down_proj").T
    return rms_norm(x, weights["model.norm.weight"]) @ weights["lm_head.weight"].T


def main():
    rng = np.random.default_rng(7)
    vocab, hidden, inner = (CONFIG[k] for k in ("vocab_size", "hidden_size", "intermediate_size"))
    q = CONFIG["num_attention_heads"] * CONFIG["head_dim"]
    kv = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    shapes = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        for name, shape in {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    weights = {
        name: (
            rng.normal(1, 0.2, shape) if len(shape) == 1 else rng.normal(0, 0.4, shape)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }
    tokens = rng.integers(0, vocab, (2, 9))
    logits = forward({name: w.astype(np.float64) for name, w in weights.items()}, tokens)

    (HERE / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    save_file(weights, HERE / "model.safetensors", metadata={"format": "pt"})
    answer = {"tokens": tokens.tolist(), "logits": logits.round(6).tolist()}
    (HERE / "answer.json").write_text(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
