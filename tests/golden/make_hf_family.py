"""Writes tests/golden/hf_NAME/: a tiny random model as saved by transformers, its predictions and its gradients.

    pip install torch==2.4.1 transformers==4.53.3 && python tests/golden/make_hf_family.py NAME tests/golden/hf_NAME

config.json and model.safetensors are save_pretrained's. logits.safetensors holds six prompts and the logits after each (tokens.0 i32
[length], logits.0 f32 [vocab], ...). grads.safetensors holds samples i32 [4, 17] and, of the mean cross entropy over their 64 targets,
loss f32 [1] and the gradient of every parameter by its name, all computed in FP64. Norms are random too, so that no two tensors are
alike; 4 heads share 2 KV heads, and head_dim is not hidden / heads where the family allows it. Windows are shorter than
the sequences (transformers before 4.53 ignores max_window_layers). Norms behind branches magnify rounding errors as much as values:
Gemma 3's have an eps with which FP32 still gives every gradient within 1e-5."""
import os
import sys

import torch
import transformers
from safetensors.torch import save_file

sys.path.append(os.path.dirname(__file__) + "/../readers")
from exact_routers import exact_routers  # noqa: E402

LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", factor=4.0, beta_fast=8.0, beta_slow=0.5, original_max_position_embeddings=16)
LINEAR = dict(rope_type="linear", factor=3.0)
# Class, sizes that are its own.
MODELS = {
    "llama": ("Llama", dict(hidden_size=20, head_dim=6)),
    "qwen2": ("Qwen2", dict(hidden_size=24, tie_word_embeddings=True)),
    "llama31": ("Llama", dict(hidden_size=20, head_dim=8, rope_theta=100.0, max_position_embeddings=64, rope_scaling=LLAMA3)),
    "llama32": ("Llama", dict(hidden_size=20, head_dim=8, rope_theta=100.0, max_position_embeddings=64, rope_scaling=LLAMA3,
                              tie_word_embeddings=True)),
    "yarn": ("Llama", dict(hidden_size=20, head_dim=8, rope_theta=100.0, max_position_embeddings=64, rope_scaling=YARN)),
    "linear": ("Llama", dict(hidden_size=20, head_dim=6, rope_scaling=LINEAR)),
    "qwen3": ("Qwen3", dict(hidden_size=20, head_dim=8)),
    "qwen3_tied": ("Qwen3", dict(hidden_size=20, head_dim=6, tie_word_embeddings=True)),
    "olmo2": ("Olmo2", dict(hidden_size=24)),
    "mistral": ("Mistral", dict(hidden_size=20, head_dim=6, sliding_window=7)),
    "qwen2_windows": ("Qwen2", dict(hidden_size=24, num_hidden_layers=3, use_sliding_window=True, sliding_window=5,
                                    max_window_layers=1)),
    "gemma2": ("Gemma2", dict(hidden_size=20, head_dim=8, num_hidden_layers=3, sliding_window=7, query_pre_attn_scalar=11,
                              attn_logit_softcapping=1.5, final_logit_softcapping=2.5)),
    "gemma2_uncapped": ("Gemma2", dict(hidden_size=24, head_dim=4, sliding_window=5, query_pre_attn_scalar=6,
                                       attn_logit_softcapping=None, final_logit_softcapping=None)),
    "gemma3": ("Gemma3", dict(hidden_size=20, head_dim=6, num_hidden_layers=4, sliding_window=5, sliding_window_pattern=3,
                              query_pre_attn_scalar=24, rope_local_base_freq=100.0, rms_norm_eps=1e-1)),
    "gemma3_linear": ("Gemma3", dict(hidden_size=24, intermediate_size=20, head_dim=8, num_hidden_layers=7, sliding_window=4,
                                     query_pre_attn_scalar=30, rope_scaling=LINEAR, final_logit_softcapping=2.0,
                                     rms_norm_eps=1e-1)),
    # Matrices of experts are square, or twice as wide as high: a transposed one would be loaded without an error.
    "mixtral": ("Mixtral", dict(hidden_size=20, head_dim=6, intermediate_size=20, num_local_experts=5, num_experts_per_tok=2,
                                sliding_window=7)),
    "qwen3_moe": ("Qwen3Moe", dict(hidden_size=20, head_dim=8, moe_intermediate_size=12, num_experts=9, num_experts_per_tok=4,
                                   norm_topk_prob=True)),
    "qwen3_moe_plain": ("Qwen3Moe", dict(hidden_size=16, head_dim=6, moe_intermediate_size=8, num_experts=6,
                                         num_experts_per_tok=1, norm_topk_prob=False)),
    "olmoe": ("Olmoe", dict(hidden_size=24, intermediate_size=12, num_experts=7, num_experts_per_tok=3)),
    "qwen2_moe": ("Qwen2Moe", dict(hidden_size=24, num_hidden_layers=3, moe_intermediate_size=12, num_experts=6,
                                   num_experts_per_tok=3, shared_expert_intermediate_size=24, mlp_only_layers=[1])),
    "dots1": ("Dots1", dict(hidden_size=20, head_dim=8, num_hidden_layers=3, moe_intermediate_size=12, n_routed_experts=8,
                            num_experts_per_tok=3, n_group=4, topk_group=2, n_shared_experts=2, first_k_dense_replace=1,
                            norm_topk_prob=True, routed_scaling_factor=2.5, sliding_window=7, max_window_layers=2)),
    "dots1_plain": ("Dots1", dict(hidden_size=24, num_hidden_layers=2, moe_intermediate_size=8, n_routed_experts=6,
                                  num_experts_per_tok=1, n_shared_experts=1, norm_topk_prob=False, sliding_window=None)),
}
name, out = sys.argv[1:3]
kind, own = MODELS[name]
torch.manual_seed(12)
sizes = dict(vocab_size=61, max_position_embeddings=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=5000.0, bos_token_id=3, eos_token_id=3,
             tie_word_embeddings=kind.startswith("Gemma"), pad_token_id=None)  # a padding token's embedding has no gradient
config = getattr(transformers, kind + ("TextConfig" if kind == "Gemma3" else "Config"))(**{**sizes, **own})
config._attn_implementation = "eager"
model = getattr(transformers, kind + "ForCausalLM")(config).eval()
with torch.no_grad():
    for p in model.parameters():
        p.add_(0.15 * torch.randn_like(p))
    for key, buffer in model.named_buffers():  # above 0: transformers 4 chooses from other groups where scores are below
        if key.endswith("e_score_correction_bias"):
            buffer.add_(0.2 * torch.rand_like(buffer))
model.save_pretrained(out, safe_serialization=True)
model = exact_routers(model.double())
if kind.startswith("Gemma"):  # its norms cast to FP32
    type(model.model.norm).forward = lambda self, x: x * torch.rsqrt(x.pow(2).mean(-1, True) + self.eps) * (1 + self.weight)
for module in model.modules():
    if hasattr(module, "inv_freq") and module.rope_type == "default":
        dim = 2 * module.inv_freq.numel()
        module.inv_freq = 1.0 / module.config.rope_theta ** (torch.arange(0, dim, 2).double() / dim)
with torch.no_grad():
    tensors = {}
    for k in range(6):
        tokens = torch.randint(0, 61, (1, 4 * k + 3))
        tensors[f"tokens.{k}"] = tokens[0].to(torch.int32)
        tensors[f"logits.{k}"] = model(tokens).logits[0, -1].float().contiguous()
save_file(tensors, out + "/logits.safetensors")
samples = torch.randint(0, 61, (4, 17))
logits = model(samples[:, :-1]).logits
loss = torch.nn.functional.cross_entropy(logits.double().reshape(-1, 61), samples[:, 1:].reshape(-1))
loss.backward()
tensors = {"samples": samples.to(torch.int32), "loss": loss.detach().float().reshape(1)}
for name, p in model.named_parameters():
    tensors["grad." + name] = p.grad.float().contiguous()
save_file(tensors, out + "/grads.safetensors")
