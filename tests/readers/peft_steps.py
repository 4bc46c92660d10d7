"""Trains LoRA adapters with PEFT on a Hugging Face folder, as an oracle for the same steps here. Writes OUT/adapter, the
adapters before the first step, and OUT/steps.safetensors: samples i32 [STEPS * BATCH, SEQ + 1], losses, and the adapters'
gradients of the first step as grad.NAME with PEFT's names.
Usage: peft_steps.py BASE OUT RANK ALPHA MODULE [MODULE ...]; a module as in self_attn.q_proj"""
import sys

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

STEPS, BATCH, SEQ = 4, 4, 16
base, out, rank, alpha, modules = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5:]
torch.manual_seed(11)
torch.set_num_threads(1)
plain = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
plain.config.use_cache = False
config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=modules, init_lora_weights="gaussian", task_type="CAUSAL_LM",
                    fan_in_fan_out=plain.config.model_type == "gpt2")
model = get_peft_model(plain, config)
model.eval()  # no dropout
trained = [p for p in model.parameters() if p.requires_grad]
with torch.no_grad():
    for name, p in model.named_parameters():
        if ".lora_B." in name:
            p.normal_(0, 0.1)  # of 0, A would have no gradient
model.save_pretrained(out + "/adapter")

samples = torch.randint(0, plain.config.vocab_size, (STEPS * BATCH, SEQ + 1), dtype=torch.int32)
optimizer = torch.optim.AdamW(trained, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
tensors, losses = {"samples": samples}, []
for step in range(STEPS):
    batch = samples[step * BATCH:(step + 1) * BATCH].long()
    optimizer.zero_grad()
    logits = model(batch[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    losses.append(loss.item())
    if step == 0:
        names = {id(v): k for k, v in get_peft_model_state_dict(model, state_dict=dict(model.named_parameters())).items()}
        tensors.update({"grad." + names[id(p)]: p.grad.clone() for p in trained})
    optimizer.step()
tensors["losses"] = torch.tensor(losses, dtype=torch.float64).float()
save_file(tensors, out + "/steps.safetensors")
