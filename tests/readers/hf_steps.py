"""Trains Hugging Face folders with transformers in FP64, as an oracle for the same steps here. Writes OUT/NAME.safetensors for each
folder hf_NAME: samples i32, losses f32 [STEPS], and the parameters after the last step by their names.
Biases of routers move by 1e-3 a step towards equal loads. AdamW, rate 1e-3, betas 0.9 and 0.95, eps 1e-8, weight decay 0.1 of tensors
with two dimensions; no dropout. A sample is SEQ + 1 tokens, of a BERT a row of data/samples/pair_row.h, all of them with as many targets.
Usage: hf_steps.py OUT FOLDER [FOLDER ...]"""
import os
import sys

import torch
import transformers
from exact_routers import exact_routers
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

STEPS, BATCH, SEQ = 50, 4, 16


def exact(model):
    """Norms and rotary frequencies that transformers computes in FP32."""
    for module in model.modules():
        kind = type(module)
        if kind.__name__.startswith("Gemma") and kind.__name__.endswith("RMSNorm"):
            kind.forward = lambda self, x: x * torch.rsqrt(x.pow(2).mean(-1, True) + self.eps) * (1 + self.weight)
        elif kind.__name__.endswith("RMSNorm"):
            kind.forward = lambda self, x: x * torch.rsqrt(x.pow(2).mean(-1, True) + self.variance_epsilon) * self.weight
        if hasattr(module, "inv_freq") and module.rope_type == "default":
            dim = 2 * module.inv_freq.numel()
            module.inv_freq = 1.0 / module.config.rope_theta ** (torch.arange(0, dim, 2).double() / dim)
    return exact_routers(model.double())


def count_choices(model):
    """Biases of routers by their names, and a list for each that receives the experts chosen in forward passes."""
    out = {}
    for name, module in model.named_modules():
        if hasattr(module, "e_score_correction_bias"):
            chosen = []
            module.register_forward_hook(lambda m, args, result, to=chosen: to.append(result[0]))
            out[name + ".e_score_correction_bias"] = (module.e_score_correction_bias, chosen)
    return out


def balance(bias, chosen):
    counts = torch.bincount(torch.cat(chosen).flatten(), minlength=bias.numel())
    bias += 1e-3 * torch.sign(counts.sum() - bias.numel() * counts)
    chosen.clear()


def pairs(vocab):
    rows = torch.zeros(STEPS * BATCH, 3 * SEQ + 2, dtype=torch.int64)
    at = torch.arange(SEQ)
    for row in rows:
        length = int(torch.randint(8, SEQ + 1, ()))
        row[:length] = torch.randint(0, vocab, (length,))
        row[SEQ:2 * SEQ] = -1
        row[SEQ + 1 + torch.randperm(length - 1)[:3]] = torch.randint(0, vocab, (3,))
        row[2 * SEQ:3 * SEQ] = (at >= length // 2) & (at < length)
        row[3 * SEQ:] = torch.tensor([length, int(torch.randint(0, 2, ()))])
    return rows


def loss_of(model, batch):
    if batch.shape[1] == SEQ + 1:
        logits = model(batch[:, :-1]).logits
        return cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    tokens, targets, types = batch[:, :3 * SEQ].reshape(-1, 3, SEQ).unbind(1)
    mask = (torch.arange(SEQ) < batch[:, -2:-1]).long()
    output = model(input_ids=tokens, token_type_ids=types, attention_mask=mask)
    of_tokens = cross_entropy(output.prediction_logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    return of_tokens + cross_entropy(output.seq_relationship_logits, batch[:, -1])


def main():
    torch.set_num_threads(1)
    out = sys.argv[1]
    os.makedirs(out)
    for folder in sys.argv[2:]:
        torch.manual_seed(21)
        config = transformers.AutoConfig.from_pretrained(folder)
        bert = config.model_type == "bert"
        kind = transformers.AutoModelForPreTraining if bert else transformers.AutoModelForCausalLM
        model = exact(kind.from_pretrained(folder, attn_implementation="eager").eval())
        model.config.use_cache = False
        params, routers = dict(model.named_parameters()), count_choices(model)
        optimizer = torch.optim.AdamW([{"params": [p for p in params.values() if p.dim() == 2], "weight_decay": 0.1},
                                       {"params": [p for p in params.values() if p.dim() < 2], "weight_decay": 0.0}],
                                      lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
        samples = pairs(config.vocab_size) if bert else torch.randint(0, config.vocab_size, (STEPS * BATCH, SEQ + 1))
        losses = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, samples[step * BATCH:(step + 1) * BATCH])
            loss.backward()
            for p in params.values():  # of an expert without tokens
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            losses.append(loss.item())
            optimizer.step()
            for bias, chosen in routers.values():
                balance(bias, chosen)
        tensors = {name: p.detach().float().contiguous() for name, p in params.items()}
        tensors.update((name, bias.float()) for name, (bias, _) in routers.items())
        tensors["samples"], tensors["losses"] = samples.to(torch.int32), torch.tensor(losses)
        save_file(tensors, f"{out}/{os.path.basename(folder)[3:]}.safetensors")


main()
