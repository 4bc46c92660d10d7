"""Writes tests/golden/hf_mistral/ or hf_qwen2_windows/: tiny random models with sliding windows, as make_hf_llama.py writes its own.

    pip install torch==2.4.1 transformers==4.53.3 && python tests/golden/make_hf_windows.py mistral tests/golden/hf_mistral

config.json and model.safetensors are save_pretrained's. logits.safetensors holds six prompts, of 3 to 23 tokens, and the logits after each.
grads.safetensors holds samples i32 [4, 17] and, of the mean cross entropy over their 64 targets, the loss and the gradient of every
parameter. FP64, eager attention (older versions apply no window to some of a Qwen2's layers there). Windows are shorter than sequences;
of the Qwen2 the first block has none."""
import sys

import torch
import transformers
from safetensors.torch import save_file

MODELS = {
    "mistral": ("Mistral", dict(hidden_size=20, head_dim=6, sliding_window=7)),
    "qwen2_windows": ("Qwen2", dict(hidden_size=24, num_hidden_layers=3, use_sliding_window=True, sliding_window=5, max_window_layers=1)),
}
name, out = sys.argv[1:3]
kind, own = MODELS[name]
torch.manual_seed(12)
sizes = dict(vocab_size=61, max_position_embeddings=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=5000.0, bos_token_id=3, eos_token_id=3, tie_word_embeddings=False)
config = getattr(transformers, kind + "Config")(**{**sizes, **own})
config._attn_implementation = "eager"
model = getattr(transformers, kind + "ForCausalLM")(config).eval()
with torch.no_grad():
    for p in model.parameters():
        p.add_(0.15 * torch.randn_like(p))
model.save_pretrained(out, safe_serialization=True)
model = model.double()
for module in model.modules():
    if hasattr(module, "inv_freq"):
        dim = 2 * module.inv_freq.numel()
        module.inv_freq = 1.0 / config.rope_theta ** (torch.arange(0, dim, 2).double() / dim)
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
for key, p in model.named_parameters():
    tensors["grad." + key] = p.grad.float().contiguous()
save_file(tensors, out + "/grads.safetensors")
