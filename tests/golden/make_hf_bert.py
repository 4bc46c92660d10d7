"""Writes tests/golden/hf_NAME/: a tiny random BERT as transformers saves it, what its two heads predict, and its gradients.

    pip install torch transformers==4.45.2 && python tests/golden/make_hf_bert.py NAME tests/golden/hf_NAME

config.json and model.safetensors are save_pretrained's. rows are i32 [4, 3 * 16 + 2], as data/samples/pair_row.h has them: tokens, targets
(-1: none), token types, length, label. Behind the length is padding, which attention does not see. heads.safetensors holds rows and, in
FP64, logits of every token and of every pair (tokens f32 [4, 16, vocab], pairs f32 [4, 2]). grads.safetensors holds the same rows and, of
the mean cross entropy over all targets plus the mean over the pairs, loss f32 [1] and the gradient of every parameter by its name.
Norms and biases are random too, so that no tensor can be mistaken for another."""
import sys

import torch
import transformers
from safetensors.torch import save_file

MODELS = {
    "bert": dict(),
    "bert_untied": dict(hidden_size=20, tie_word_embeddings=False, type_vocab_size=3, layer_norm_eps=1e-6),
    "bert_deep": dict(hidden_size=16, num_hidden_layers=4, intermediate_size=24, vocab_size=150, max_position_embeddings=16),
}
name, out = sys.argv[1:3]
torch.manual_seed(12)
sizes = dict(vocab_size=61, max_position_embeddings=24, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
             pad_token_id=None)
config = transformers.BertConfig(**{**sizes, **MODELS[name]})
config._attn_implementation = "eager"
model = transformers.BertForPreTraining(config).eval()
with torch.no_grad():
    for p in model.parameters():
        p.add_(0.15 * torch.randn_like(p))
model.save_pretrained(out, safe_serialization=True)
model = model.double()

SEQ = 16
tokens = torch.randint(0, config.vocab_size, (4, SEQ))
targets = torch.where(torch.rand(4, SEQ) < 0.3, torch.randint(0, config.vocab_size, (4, SEQ)), torch.tensor(-1))
lengths, labels = torch.tensor([16, 11, 5, 14]), torch.tensor([0, 1, 1, 0])
second = torch.tensor([7, 6, 2, 3])
at = torch.arange(SEQ)
types = ((at >= second[:, None]) & (at < lengths[:, None])).long()
targets[at >= lengths[:, None]] = -1
targets[:, 0] = -1
rows = torch.cat([tokens, targets, types, lengths[:, None], labels[:, None]], 1).to(torch.int32)

outputs = model(input_ids=tokens, token_type_ids=types, attention_mask=(at < lengths[:, None]).long())
save_file({"rows": rows, "tokens": outputs.prediction_logits.detach().float().contiguous(),
           "pairs": outputs.seq_relationship_logits.detach().float().contiguous()}, out + "/heads.safetensors")
loss = torch.nn.functional.cross_entropy(outputs.prediction_logits.reshape(-1, config.vocab_size), targets.reshape(-1), ignore_index=-1)
loss = loss + torch.nn.functional.cross_entropy(outputs.seq_relationship_logits, labels)
loss.backward()
tensors = {"rows": rows, "loss": loss.detach().float().reshape(1)}
for name, p in model.named_parameters():
    tensors["grad." + name] = p.grad.float().contiguous()
save_file(tensors, out + "/grads.safetensors")
