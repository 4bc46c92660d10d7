"""Megatron-core's routed experts on the CPU as an oracle: one forward and backward pass of models that `gpttrain export` wrote.

    build/hf/bin/python tests/readers/megatron_experts.py --layout 1 1 allgather --layout 2 4 alltoall ... --model FOLDER BALANCE ...
    (expert-parallel ranks, data-parallel ranks, dispatcher; coefficient of the balance loss of sequences)

A FOLDER holds model.safetensors with our names (export --naming native), of a decoder with RMSNorm, rotary positions, gated SiLU, no
biases and routed experts, with or without a norm of each head's queries and keys, dense blocks, shared experts and their gate, and a
bias and groups for the choice of experts. Matrices of an expert get to Megatron's SequentialMLP by the number of the expert.

FOLDER/EP-DP-DISPATCHER.safetensors holds samples i32 [BATCH, seq + 1]; loss and balance f32 [2], a number and what its rounding left:
means over tokens and over sequences, the latter times its coefficient; margin [1], the smallest distance of a chosen score to one that
is not; logits [seq, vocab] of the first sample; the gradient of every parameter, `grad.` and its name; and `next.` with the name of each
bias of a router, after a step has moved it by BIAS_RATE.

The schedule without pipeline, the dispatchers, the load balancing losses, and the reduction of gradients of dense parameters and of
experts over their own groups are Megatron's, over gloo, in microbatches of MICRO samples.
"""
import argparse
import json
import tempfile

import megatron_cpu  # first
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker
from megatron.core.transformer.moe.router import TopKRouter

BATCH, MICRO, BIAS_RATE = 8, 2, 0.05
# Settings of ours: those without which this model is another, and the others with their values where the export leaves them out.
NEEDED = dict(norm="rms_norm", position="rotary", activation="silu", gated=True, qkv_bias=False, out_bias=False, mlp_bias=False)
READ = dict(arch="", layers=0, hidden=0, heads=0, ffn=0, vocab=0, seq=0, tied=True, kv_heads=0, head_dim=0, norm_eps=1e-5,
            rope_theta=10000.0, qk_norm="none", moe_experts=0, moe_top_k=2, moe_gate="softmax", moe_normalize=True, moe_scale=1.0,
            moe_groups=1, moe_top_groups=1, moe_bias=False, moe_shared=0, moe_shared_gate=False, moe_dense_blocks=(), moe_dense_ffn=0)
# Our name: Megatron's. Of a block behind layers.N and decoder.layers.N
OUTER = {"embed.weight": "embedding.word_embeddings.weight", "final_norm.weight": "decoder.final_layernorm.weight",
         "head.weight": "output_layer.weight"}
INNER = {"norm1.weight": "input_layernorm.weight", "attn.out.weight": "self_attention.linear_proj.weight",
         "norm2.weight": "pre_mlp_layernorm.weight", "mlp.router.weight": "mlp.router.weight", "mlp.router.bias": "mlp.router.expert_bias",
         "mlp.up.weight": "mlp.linear_fc1.weight", "mlp.down.weight": "mlp.linear_fc2.weight",
         "mlp.shared.up.weight": "mlp.shared_experts.linear_fc1.weight", "mlp.shared.gate.weight": "mlp.shared_experts.gate_weight",
         "mlp.shared.down.weight": "mlp.shared_experts.linear_fc2.weight"}
EXPERTS = {"mlp.experts.up.weight": "linear_fc1.weight", "mlp.experts.down.weight": "linear_fc2.weight"}


def read_model(folder):
    """Settings and tensors of an export."""
    with safe_open(folder + "/model.safetensors", "pt") as f:
        found = json.loads(f.metadata()["gpttrain.model"])
        weights = {name: f.get_tensor(name) for name in f.keys()}
    unknown = {k: v for k, v in found.items() if k not in READ and NEEDED.get(k) != v}
    missing = NEEDED.keys() - found.keys()
    assert not unknown and not missing, f"{folder}: not written for {unknown}, {missing}"
    m = argparse.Namespace(**{**READ, **found})
    m.kv_heads, m.head_dim = m.kv_heads or m.heads, m.head_dim or m.hidden // m.heads
    assert m.qk_norm in ("none", "head") and (m.moe_gate == "softmax" or m.moe_normalize or m.moe_top_k == 1), folder
    assert m.moe_groups == 1 or m.moe_top_k == 2 * m.moe_top_groups, f"{folder}: Megatron sums the best top_k / top_groups of a group"
    return m, weights


def config_of(m, balance, ep, dispatcher):
    return TransformerConfig(
        num_layers=m.layers, hidden_size=m.hidden, num_attention_heads=m.heads, num_query_groups=m.kv_heads, kv_channels=m.head_dim,
        ffn_hidden_size=m.moe_dense_ffn or m.ffn, normalization="RMSNorm", layernorm_epsilon=m.norm_eps, qk_layernorm=m.qk_norm == "head",
        add_bias_linear=False, gated_linear_unit=True, activation_func=torch.nn.functional.silu, bias_activation_fusion=False,
        expert_model_parallel_size=ep, num_moe_experts=m.moe_experts, moe_ffn_hidden_size=m.ffn, moe_router_topk=m.moe_top_k,
        moe_router_score_function=m.moe_gate, moe_router_pre_softmax=m.moe_gate == "softmax" and not m.moe_normalize,
        moe_router_topk_scaling_factor=m.moe_scale if m.moe_scale != 1 else None, moe_token_dispatcher_type=dispatcher,
        moe_layer_freq=[int(block not in m.moe_dense_blocks) for block in range(m.layers)], moe_router_enable_expert_bias=m.moe_bias,
        moe_router_bias_update_rate=BIAS_RATE,
        moe_router_num_groups=m.moe_groups if m.moe_groups > 1 else None,
        moe_router_group_topk=m.moe_top_groups if m.moe_groups > 1 else None,
        moe_shared_expert_intermediate_size=m.moe_shared * m.ffn or None, moe_shared_expert_gate=m.moe_shared_gate,
        moe_router_load_balancing_type="seq_aux_loss" if balance else "none", moe_aux_loss_coeff=balance,
        pipeline_dtype=torch.float32, params_dtype=torch.float32, use_cpu_initialization=True, hidden_dropout=0, attention_dropout=0,
        bias_dropout_fusion=False, masked_softmax_fusion=False, finalize_model_grads_func=finalize_model_grads)


def by_group(qkv, m):
    """Rows of [Q; K; V] in Megatron's order: of each group its queries, its key, its value."""
    parts = qkv.split([n * m.head_dim for n in (m.heads, m.kv_heads, m.kv_heads)])
    return torch.cat([x.reshape(m.kv_heads, -1, m.hidden) for x in parts], 1).flatten(0, 1)


def from_groups(qkv, m):
    parts = qkv.reshape(m.kv_heads, -1, m.hidden).split([m.heads // m.kv_heads * m.head_dim, m.head_dim, m.head_dim], 1)
    return torch.cat([x.flatten(0, 1) for x in parts])


def to_megatron(weights, m):
    out = {}
    for name, value in weights.items():
        if not name.startswith("layers."):
            out[OUTER[name]] = value
            continue
        _, layer, rest = name.split(".", 2)
        layer = f"decoder.layers.{layer}."
        if rest == "attn.qkv.weight":
            out[layer + "self_attention.linear_qkv.weight"] = by_group(value, m)
        elif rest == "attn.qk_norm.weight":
            for kind, part in zip("qk", value.reshape(2, -1)):
                out[f"{layer}self_attention.{kind}_layernorm.weight"] = part
        elif rest in EXPERTS:
            for expert, matrix in enumerate(value):
                out[f"{layer}mlp.experts.local_experts.{expert}.{EXPERTS[rest]}"] = matrix
        else:
            out[layer + INNER[rest]] = value
    return out


def from_megatron(found, m, like):
    """The inverse: tensors with the names and shapes of `like`."""
    found, out = dict(found), {}
    for name, shape in ((name, value.shape) for name, value in like.items()):
        layer = rest = ""
        if name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            layer = f"decoder.layers.{layer}."
        if rest == "attn.qkv.weight":
            value = from_groups(found.pop(layer + "self_attention.linear_qkv.weight"), m)
        elif rest == "attn.qk_norm.weight":
            value = torch.cat([found.pop(f"{layer}self_attention.{kind}_layernorm.weight") for kind in "qk"])
        elif rest in EXPERTS:
            value = torch.stack([found.pop(f"{layer}mlp.experts.local_experts.{e}.{EXPERTS[rest]}") for e in range(m.moe_experts)])
        else:
            value = found.pop(layer + INNER[rest] if layer else OUTER[name])
        out[name] = value.reshape(shape).contiguous()
    assert not found, f"not mapped: {sorted(found)}"
    return out


def with_expert_numbers(name, first):
    """The name of a parameter among all ranks: its expert's number counts from that of the rank's first."""
    before, found, after = name.partition(".local_experts.")
    if not found:
        return name
    own, rest = after.split(".", 1)
    return f"{before}{found}{first + int(own)}.{rest}"


def watch_margins(margins):
    """Appends to the list the smallest margin of every choice."""
    routing = TopKRouter.routing

    def watched(self, logits, *args, **kwargs):
        scores = logits.detach().flatten(0, -2)
        if self.score_function == "sigmoid":
            scores = scores.sigmoid() + (0 if self.expert_bias is None else self.expert_bias)
        best = scores.topk(self.topk + 1).values
        margins.append((best[:, -2] - best[:, -1]).min().item())
        return routing(self, logits, *args, **kwargs)
    TopKRouter.routing = watched


def build(m, weights, config):
    """This rank's model with its part of the weights, and the names of its tensors among all ranks by its own."""
    first = parallel_state.get_expert_model_parallel_rank() * (m.moe_experts // config.expert_model_parallel_size)
    model = GPTModel(config, get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm"), m.vocab, m.seq,
                     share_embeddings_and_output_weights=m.tied, position_embedding_type="rope", rotary_base=m.rope_theta)
    full, names = to_megatron(weights, m), {}
    with torch.no_grad():
        for name, x in [*model.named_parameters(), *model.named_buffers()]:
            if isinstance(x, torch.nn.Parameter) or name.endswith(".expert_bias"):
                names[name] = with_expert_numbers(name, first)
                x.copy_(full[names[name]])
    return model, names


def pass_of(m, weights, samples, balance, ep, dp, dispatcher):
    """One rank's forward and backward pass: what the file holds, tensors by Megatron's names among all ranks."""
    parallel_state.initialize_model_parallel(expert_model_parallel_size=ep)
    config, margins = config_of(m, balance, ep, dispatcher), []
    model, names = build(m, weights, config)
    ddp = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False), model)
    ddp.zero_grad_buffer()
    watch_margins(margins)
    positions, mask = torch.arange(m.seq)[None], torch.triu(torch.ones(1, 1, m.seq, m.seq, dtype=torch.bool), 1)
    with torch.no_grad():
        logits = model(samples[:1, :-1].long(), positions, mask)[0]

    def forward_step(iterator, module):
        rows = next(iterator)
        out = module(rows[:, :-1], positions.expand(len(rows), -1), mask, labels=rows[:, 1:])
        return out, lambda losses: (losses.mean(), {"loss": losses.detach().double().mean()})

    own = samples.long().chunk(dp)[parallel_state.get_data_parallel_rank()].split(MICRO)
    parts = get_forward_backward_func()(forward_step_func=forward_step, data_iterator=iter(own), model=[ddp],
                                        num_microbatches=len(own), seq_length=m.seq, micro_batch_size=MICRO, forward_only=False)
    losses = get_moe_layer_wise_logging_tracker().get("seq_load_balancing_loss", {"values": torch.zeros(1)})["values"]
    return dict(loss=torch.stack([p["loss"] for p in parts]).mean(), balance=balance * losses.double().sum() / len(own),
                margin=min(margins), logits=logits, grads={names[name]: p.main_grad for name, p in model.named_parameters()},
                next={names[name]: x for name, x in model.named_buffers() if name in names})


def two_floats(x):
    high = x.float()
    return torch.stack([high, (x - high.double()).float()])


def rank_main(rank, store, folder, balance, ep, dp, dispatcher):
    torch.distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=dp)
    m, weights = read_model(folder)
    samples = torch.randint(0, m.vocab, (BATCH, m.seq + 1), generator=torch.Generator().manual_seed(5)).to(torch.int32)
    every = [None] * dp
    torch.distributed.all_gather_object(every, pass_of(m, weights, samples, balance, ep, dp, dispatcher))
    if rank == 0:
        tensors = {}
        for prefix, kind, trained in ("grad.", "grads", True), ("next.", "next", False):
            like, found = {name: x for name, x in weights.items() if name.endswith("router.bias") != trained}, {}
            for name, x in (item for one in every for item in one[kind].items()):
                assert torch.equal(found.setdefault(name, x), x), f"copies of {prefix}{name} differ"
            tensors.update({prefix + name: x for name, x in from_megatron(found, m, like).items()})
        tensors.update({kind: two_floats(torch.stack([one[kind] for one in every]).mean()) for kind in ("loss", "balance")})
        tensors.update(samples=samples, margin=torch.tensor([min(one["margin"] for one in every)]), logits=every[0]["logits"])
        save_file(tensors, f"{folder}/{ep}-{dp}-{dispatcher}.safetensors")
    torch.distributed.barrier()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layout", nargs=3, action="append", required=True)
    parser.add_argument("--model", nargs=2, action="append", required=True)
    args = parser.parse_args()
    for folder, balance in args.model:
        for ep, dp, dispatcher in args.layout:
            with tempfile.TemporaryDirectory() as store:
                megatron_cpu.on_ranks(int(dp), lambda rank: rank_main(rank, store + "/store", folder, float(balance), int(ep), int(dp),
                                                                      dispatcher))
            print(f"{folder} ep {ep} dp {dp} {dispatcher}: done", flush=True)


main()
