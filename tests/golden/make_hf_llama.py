"""Writes tests/golden/hf_llama/ or hf_qwen2/: a tiny random model as transformers saves it, what it predicts, and its gradients.

    pip install torch transformers && python tests/golden/make_hf_llama.py llama tests/golden/hf_llama

config.json and model.safetensors are save_pretrained's. logits.safetensors holds six prompts and the logits after each (tokens.0 i32
[length], logits.0 f32 [vocab], ...). grads.safetensors holds samples i32 [4, 17] and, of the mean cross entropy over their 64 targets,
loss f32 [1] and the gradient of every parameter by its name. All of it is computed in FP64. Norms are random too, so that no tensor can be
mistaken for another; 4 heads share 2 key and value heads. Llama: hidden is 20, a head has 6 channels. Qwen2: biases of q, k and v."""
import sys

import torch
import transformers
from safetensors.torch import save_file

family, out = sys.argv[1:3]
torch.manual_seed(12)
sizes = dict(vocab_size=61, max_position_embeddings=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=5000.0, bos_token_id=3, eos_token_id=3)
if family == "llama":
    config = transformers.LlamaConfig(hidden_size=20, head_dim=6, tie_word_embeddings=False, **sizes)
    model = transformers.LlamaForCausalLM(config).eval()
else:
    config = transformers.Qwen2Config(hidden_size=24, tie_word_embeddings=True, **sizes)
    model = transformers.Qwen2ForCausalLM(config).eval()
with torch.no_grad():
    for p in model.parameters():
        p.add_(0.15 * torch.randn_like(p))
model.save_pretrained(out, safe_serialization=True)
model = model.double()
for module in model.modules():
    if hasattr(module, "inv_freq"):
        module.inv_freq = 1.0 / 5000.0 ** (torch.arange(0, 6, 2).double() / 6)
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
