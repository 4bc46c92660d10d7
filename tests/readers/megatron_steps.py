"""Trains tiny models with Megatron-core on the CPU, each on every given layout, and writes what it computed.

    build/hf/bin/python tests/readers/megatron_steps.py OUT 1,1,1 2,2,1 ...      (tp,pp,dp)

Families: gpt (GPTModel with the local layer spec, LayerNorm, learned positions, GELU, biases, tied head), llama (RMSNorm, rotary
positions, SwiGLU, grouped queries, untied head) and bert (BertModel: norms before branches, GELU by erf, token types, padding, masked
language model and binary head). OUT/FAMILY/ is a Hugging Face folder with the initial weights: config.json and model.safetensors; of
bert, whose norms transformers places elsewhere, names are gpttrain's. OUT/FAMILY/TP-PP-DP.safetensors holds, of STEPS AdamW steps:
samples i32, losses and norms f32 [STEPS], and of the first step the gradient of every parameter, `grad.` and its name. A sample is
SEQ + 1 tokens; of bert tokens, targets (-1: none) and types, SEQ each, length and label of the pair. FP32 throughout.

Megatron's own schedules (1F1B), data-parallel buckets, embedding groups, gradient norm and optimizer run, over gloo.
"""
import json
import os
import sys
import tempfile

import megatron_cpu  # first
import torch
from safetensors.torch import save_file

from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
from megatron.core.models.bert.bert_model import BertModel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

LAYERS, HEADS, VOCAB, SEQ, BATCH, STEPS, MASKED = 4, 4, 62, 16, 8, 3, 3
OPTIM = dict(lr=1e-2, adam_beta1=0.9, adam_beta2=0.95, adam_eps=1e-8, weight_decay=0.1)


class Causal:
    """Predicts the next token."""
    decoder = "decoder."

    @classmethod
    def make(cls, config, **stage):
        return GPTModel(config, get_gpt_layer_local_spec(normalization=cls.normalization), VOCAB, SEQ, **stage, **cls.model)

    @staticmethod
    def samples(maker):
        return torch.randint(0, VOCAB, (STEPS * BATCH, SEQ + 1), generator=maker)

    @staticmethod
    def loss(module, sample):
        mask = torch.triu(torch.ones(1, 1, SEQ, SEQ, dtype=torch.bool), 1)
        out = module(sample[None, :-1], torch.arange(SEQ)[None], mask, labels=sample[None, 1:])
        return out, lambda losses: losses.mean()


class Gpt(Causal):
    hidden, ffn, groups, head_dim = 24, 96, 4, 6
    hf = dict(model_type="gpt2", vocab_size=VOCAB, n_positions=SEQ, n_embd=24, n_layer=LAYERS, n_head=HEADS, layer_norm_epsilon=1e-5,
              activation_function="gelu_new", embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)
    config = dict(add_bias_linear=True, activation_func=torch.nn.functional.gelu, bias_activation_fusion=True)  # fused: tanh form
    model = dict(share_embeddings_and_output_weights=True, position_embedding_type="learned_absolute")
    normalization = "LayerNorm"
    # Hugging Face's name: Megatron's, shape
    outer = {"transformer.wte.weight": ("embedding.word_embeddings.weight", (VOCAB, 24)),
             "transformer.wpe.weight": ("embedding.position_embeddings.weight", (SEQ, 24)),
             "transformer.ln_f.weight": ("decoder.final_layernorm.weight", (24,)),
             "transformer.ln_f.bias": ("decoder.final_layernorm.bias", (24,))}
    layer = "transformer.h."
    inner = {"ln_1.weight": ("input_layernorm.weight", (24,)), "ln_1.bias": ("input_layernorm.bias", (24,)),
             "attn.c_attn.weight": ("self_attention.linear_qkv.weight", (24, 72)),
             "attn.c_attn.bias": ("self_attention.linear_qkv.bias", (72,)),
             "attn.c_proj.weight": ("self_attention.linear_proj.weight", (24, 24)),
             "attn.c_proj.bias": ("self_attention.linear_proj.bias", (24,)),
             "ln_2.weight": ("pre_mlp_layernorm.weight", (24,)), "ln_2.bias": ("pre_mlp_layernorm.bias", (24,)),
             "mlp.c_fc.weight": ("mlp.linear_fc1.weight", (24, 96)), "mlp.c_fc.bias": ("mlp.linear_fc1.bias", (96,)),
             "mlp.c_proj.weight": ("mlp.linear_fc2.weight", (96, 24)), "mlp.c_proj.bias": ("mlp.linear_fc2.bias", (24,))}


class Llama(Causal):
    hidden, ffn, groups, head_dim = 20, 36, 2, 6
    hf = dict(model_type="llama", vocab_size=VOCAB, max_position_embeddings=SEQ, hidden_size=20, intermediate_size=36, head_dim=6,
              num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=5000.0,
              hidden_act="silu", tie_word_embeddings=False)
    config = dict(add_bias_linear=False, gated_linear_unit=True, activation_func=torch.nn.functional.silu, bias_activation_fusion=False)
    model = dict(share_embeddings_and_output_weights=False, position_embedding_type="rope", rotary_base=5000)
    normalization = "RMSNorm"
    outer = {"model.embed_tokens.weight": ("embedding.word_embeddings.weight", (VOCAB, 20)),
             "model.norm.weight": ("decoder.final_layernorm.weight", (20,)), "lm_head.weight": ("output_layer.weight", (VOCAB, 20))}
    layer = "model.layers."
    inner = {"input_layernorm.weight": ("input_layernorm.weight", (20,)),
             "self_attn.q_proj.weight": ("q", (24, 20)), "self_attn.k_proj.weight": ("k", (12, 20)),
             "self_attn.v_proj.weight": ("v", (12, 20)), "self_attn.o_proj.weight": ("self_attention.linear_proj.weight", (20, 24)),
             "post_attention_layernorm.weight": ("pre_mlp_layernorm.weight", (20,)), "mlp.gate_proj.weight": ("gate", (36, 20)),
             "mlp.up_proj.weight": ("up", (36, 20)), "mlp.down_proj.weight": ("mlp.linear_fc2.weight", (20, 36))}


class Bert:
    decoder = "encoder."
    hidden, ffn, groups, head_dim = 24, 96, 4, 6
    hf = dict(model_type="bert", vocab_size=VOCAB, max_position_embeddings=SEQ, hidden_size=24, intermediate_size=96,
              num_hidden_layers=LAYERS, num_attention_heads=HEADS, layer_norm_eps=1e-5, hidden_act="gelu", type_vocab_size=2,
              hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config = dict(add_bias_linear=True, activation_func=torch.nn.functional.gelu, bias_activation_fusion=False)
    normalization = "LayerNorm"
    outer = {"embed.weight": ("embedding.word_embeddings.weight", (VOCAB, 24)),
             "pos_embed.weight": ("embedding.position_embeddings.weight", (SEQ, 24)),
             "type_embed.weight": ("embedding.tokentype_embeddings.weight", (2, 24)),
             "final_norm.weight": ("encoder.final_layernorm.weight", (24,)), "final_norm.bias": ("encoder.final_layernorm.bias", (24,)),
             "mlm.dense.weight": ("lm_head.dense.weight", (24, 24)), "mlm.dense.bias": ("lm_head.dense.bias", (24,)),
             "mlm.norm.weight": ("lm_head.layer_norm.weight", (24,)), "mlm.norm.bias": ("lm_head.layer_norm.bias", (24,)),
             "mlm.decoder.bias": ("output_layer.bias", (VOCAB,)),
             "pairs.pooler.weight": ("pooler.dense.weight", (24, 24)), "pairs.pooler.bias": ("pooler.dense.bias", (24,)),
             "pairs.classes.weight": ("binary_head.weight", (2, 24)), "pairs.classes.bias": ("binary_head.bias", (2,))}
    layer = "layers."
    inner = {"norm1.weight": ("input_layernorm.weight", (24,)), "norm1.bias": ("input_layernorm.bias", (24,)),
             "attn.qkv.weight": ("self_attention.linear_qkv.weight", (72, 24)),
             "attn.qkv.bias": ("self_attention.linear_qkv.bias", (72,)),
             "attn.out.weight": ("self_attention.linear_proj.weight", (24, 24)),
             "attn.out.bias": ("self_attention.linear_proj.bias", (24,)),
             "norm2.weight": ("pre_mlp_layernorm.weight", (24,)), "norm2.bias": ("pre_mlp_layernorm.bias", (24,)),
             "mlp.up.weight": ("mlp.linear_fc1.weight", (96, 24)), "mlp.up.bias": ("mlp.linear_fc1.bias", (96,)),
             "mlp.down.weight": ("mlp.linear_fc2.weight", (24, 96)), "mlp.down.bias": ("mlp.linear_fc2.bias", (24,))}

    @staticmethod
    def make(config, **stage):
        return BertModel(config, 2, bert_layer_local_spec, VOCAB, SEQ, share_embeddings_and_output_weights=True, **stage)

    @staticmethod
    def samples(maker):
        """Every sample has MASKED targets, so that the mean of means over microbatches is the mean over tokens."""
        rows = []
        for _ in range(STEPS * BATCH):
            length = int(torch.randint(SEQ // 2, SEQ + 1, (1,), generator=maker))
            tokens, types = torch.zeros(SEQ, dtype=torch.int64), torch.zeros(SEQ, dtype=torch.int64)
            targets = torch.full((SEQ,), -1)
            tokens[:length] = torch.randint(0, VOCAB, (length,), generator=maker)
            types[length // 2:length] = 1
            chosen = torch.randperm(length, generator=maker)[:MASKED]
            targets[chosen] = torch.randint(0, VOCAB, (MASKED,), generator=maker)
            rows.append(torch.cat([tokens, targets, types, torch.tensor([length]), torch.randint(0, 2, (1,), generator=maker)]))
        return torch.stack(rows)

    @staticmethod
    def loss(module, sample):
        tokens, targets, types = sample[:3 * SEQ].reshape(3, 1, SEQ)
        padding = (torch.arange(SEQ)[None] < sample[-2]).long()
        out = module(tokens, padding, tokentype_ids=types, lm_labels=targets.clamp(min=0))

        def both(parts):
            losses, pair = parts
            return losses[targets >= 0].mean() + torch.nn.functional.cross_entropy(pair, sample[-1:])
        return out, both


def layer_names(family):
    return {f"{family.layer}{n}.{name}": (f"{family.decoder}layers.{n}.", theirs, shape)
            for n in range(LAYERS) for name, (theirs, shape) in family.inner.items()}


def random_weights(family):
    shapes = {name: shape for name, (_, shape) in family.outer.items()}
    shapes.update({name: shape for name, (_, _, shape) in layer_names(family).items()})
    maker = torch.Generator().manual_seed(12)
    out = {}
    for name in sorted(shapes):
        norm = len(shapes[name]) == 1 and name.endswith("weight")
        out[name] = (1.0 if norm else 0.0) + 0.15 * torch.randn(shapes[name], generator=maker)
    return out


def by_group(q, k, v, family):
    """Rows of q, k and v in Megatron's order: of each group its queries, its key, its value."""
    parts = [x.reshape(family.groups, -1, *x.shape[1:]) for x in (q, k, v)]
    return torch.cat(parts, 1).flatten(0, 1)


def from_groups(qkv, family):
    rows = HEADS // family.groups * family.head_dim
    return [x.flatten(0, 1) for x in qkv.reshape(family.groups, -1, *qkv.shape[1:]).split([rows, family.head_dim, family.head_dim], 1)]


def to_megatron(weights, family):
    out = {theirs: weights[name] for name, (theirs, _) in family.outer.items()}
    for name, (prefix, theirs, shape) in layer_names(family).items():
        transposed = family is Gpt and len(shape) == 2
        out[prefix + theirs] = weights[name].T if transposed else weights[name]
    for n in range(LAYERS):
        prefix = f"{family.decoder}layers.{n}."
        if family is Llama:
            qkv = [out.pop(prefix + x) for x in "qkv"]
            out[prefix + "self_attention.linear_qkv.weight"] = by_group(*qkv, family)
            out[prefix + "mlp.linear_fc1.weight"] = torch.cat([out.pop(prefix + "gate"), out.pop(prefix + "up")])
        else:
            for kind in "weight", "bias":
                name = prefix + "self_attention.linear_qkv." + kind
                out[name] = by_group(*out[name].chunk(3), family)
    return out


def from_megatron(tensors, family):
    tensors = dict(tensors)
    for n in range(LAYERS):
        prefix = f"{family.decoder}layers.{n}."
        if family is Llama:
            qkv = from_groups(tensors.pop(prefix + "self_attention.linear_qkv.weight"), family)
            tensors.update({prefix + x: t for x, t in zip("qkv", qkv)})
            tensors[prefix + "gate"], tensors[prefix + "up"] = tensors.pop(prefix + "mlp.linear_fc1.weight").chunk(2)
        else:
            for kind in "weight", "bias":
                name = prefix + "self_attention.linear_qkv." + kind
                tensors[name] = torch.cat(from_groups(tensors[name], family))
    out = {name: tensors.pop(theirs) for name, (theirs, _) in family.outer.items()}
    for name, (prefix, theirs, shape) in layer_names(family).items():
        value = tensors.pop(prefix + theirs)
        out[name] = value.T if family is Gpt and len(shape) == 2 else value
    assert not tensors, f"not mapped: {sorted(tensors)}"
    return out


def split_dim(name, param):
    """The dimension that tensor parallelism cuts, or None; gate and up are cut each."""
    return param.partition_dim if getattr(param, "tensor_model_parallel", False) else None


def cut(full, dim, gated, rank, size):
    if dim is None:
        return full
    return torch.cat([part.chunk(size, dim)[rank] for part in full.chunk(2 if gated else 1)])


def joined(parts, dim, gated):
    if dim is None:
        for part in parts[1:]:
            assert torch.equal(part, parts[0]), "copies on tensor-parallel ranks differ"
        return parts[0]
    return torch.cat([torch.cat(kind, dim) for kind in zip(*(p.chunk(2 if gated else 1) for p in parts))])


def batches(samples, step, dp_rank, dp):
    own = samples[step * BATCH:(step + 1) * BATCH][dp_rank * BATCH // dp:(dp_rank + 1) * BATCH // dp].long()
    yield from own


def train(family, weights, samples, tp, pp, dp):
    """One rank's run. Returns losses (last stage only), norms and its gradients by Megatron's full names."""
    parallel_state.initialize_model_parallel(tp, pp)
    tp_rank, pp_rank = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank()
    config = TransformerConfig(
        num_layers=LAYERS, hidden_size=family.hidden, num_attention_heads=HEADS, num_query_groups=family.groups,
        kv_channels=family.head_dim, ffn_hidden_size=family.ffn, normalization=family.normalization, layernorm_epsilon=1e-5,
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, pipeline_dtype=torch.float32, params_dtype=torch.float32,
        use_cpu_initialization=True, hidden_dropout=0, attention_dropout=0, bias_dropout_fusion=False, masked_softmax_fusion=False,
        batch_p2p_comm=False, finalize_model_grads_func=finalize_model_grads, **family.config)
    model = family.make(config, pre_process=pp_rank == 0, post_process=pp_rank == pp - 1)
    first = LAYERS // pp * pp_rank

    def full_name(name):
        if name == "output_layer.weight" and family is not Llama:
            return "embedding.word_embeddings.weight"  # the last stage's copy of the tied embedding
        layers = family.decoder + "layers."
        if not name.startswith(layers):
            return name
        own, rest = name[len(layers):].split(".", 1)
        return f"{layers}{first + int(own)}.{rest}"

    full = to_megatron(weights, family)
    gated = {name: family is Llama and ".linear_fc1." in name for name, _ in model.named_parameters()}
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(cut(full[full_name(name)], split_dim(name, p), gated[name], tp_rank, tp))
    ddp = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", clip_grad=0.0, params_dtype=torch.float32, **OPTIM), [ddp])
    OptimizerParamScheduler(optimizer, OPTIM["lr"], OPTIM["lr"], OPTIM["lr"], 0, STEPS, "constant", OPTIM["weight_decay"],
                            OPTIM["weight_decay"], STEPS, "constant")  # no decay of biases and norms

    def forward_step(iterator, module):
        out, loss_of = family.loss(module, next(iterator))

        def loss(out):
            exact = tuple(x.detach().double() for x in out) if isinstance(out, tuple) else out.detach().double()
            return loss_of(out), {"loss": loss_of(exact)}
        return out, loss

    losses, norms, grads = [], [], {}
    dp_rank = parallel_state.get_data_parallel_rank()
    for step in range(STEPS):
        ddp.zero_grad_buffer()
        optimizer.zero_grad()
        parts = get_forward_backward_func()(
            forward_step_func=forward_step, data_iterator=batches(samples, step, dp_rank, dp), model=[ddp], num_microbatches=BATCH // dp,
            seq_length=SEQ, micro_batch_size=1, forward_only=False)
        if parts:
            loss = torch.stack([p["loss"] for p in parts]).mean()
            torch.distributed.all_reduce(loss, group=parallel_state.get_data_parallel_group())
            losses.append(loss.item() / dp)
        optimizer.prepare_grads()
        norms.append(optimizer.get_grad_norm())
        if step == 0:
            grads = {full_name(name): (split_dim(name, p), gated[name], p.main_grad.clone())
                     for name, p in model.named_parameters()}
        optimizer.step_with_ready_grads()
    return dict(tp=tp_rank, dp=dp_rank, losses=losses, norms=norms, grads=grads)


def rank_main(rank, store, family, weights, samples, layout, out):
    tp, pp, dp = layout
    torch.distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=tp * pp * dp)
    mine = train(family, weights, samples, *layout)
    all_ranks = [None] * (tp * pp * dp)
    torch.distributed.all_gather_object(all_ranks, mine)
    if rank == 0:
        parts = {}
        for r in sorted(all_ranks, key=lambda r: r["tp"]):
            assert r["norms"] == mine["norms"], "ranks disagree about the gradient norm"
            for name, (dim, gated, grad) in r["grads"].items() if r["dp"] == 0 else ():
                parts.setdefault(name, []).append((r["tp"], dim, gated, grad))
        grads = {}
        for name, found in parts.items():
            shards = {}
            for tp_rank, _, _, grad in found:  # a tied embedding is on two stages
                assert torch.equal(shards.setdefault(tp_rank, grad), grad), f"copies of {name} differ"
            grads[name] = joined([shards[k] for k in sorted(shards)], found[0][1], found[0][2])
        tensors = {"grad." + name: g.contiguous() for name, g in from_megatron(grads, family).items()}
        tensors["samples"] = samples
        tensors["losses"] = torch.tensor(next(r["losses"] for r in all_ranks if r["losses"]))
        tensors["norms"] = torch.tensor(mine["norms"])
        save_file(tensors, out)
    torch.distributed.barrier()


def main():
    out, layouts = sys.argv[1], [tuple(map(int, layout.split(","))) for layout in sys.argv[2:]]
    for name, family in ("gpt", Gpt), ("llama", Llama), ("bert", Bert):
        folder = f"{out}/{name}"
        os.makedirs(folder)
        weights = random_weights(family)
        save_file(weights, folder + "/model.safetensors")
        with open(folder + "/config.json", "w") as f:
            json.dump(family.hf, f)
        samples = family.samples(torch.Generator().manual_seed(5)).to(torch.int32)
        for layout in layouts:
            file = f"{folder}/{'-'.join(map(str, layout))}.safetensors"
            with tempfile.TemporaryDirectory() as store:
                megatron_cpu.on_ranks(layout[0] * layout[1] * layout[2],
                                      lambda rank: rank_main(rank, store + "/store", family, weights, samples, layout, file))
            print(f"{name} tp {layout[0]} pp {layout[1]} dp {layout[2]}: done", flush=True)


main()
