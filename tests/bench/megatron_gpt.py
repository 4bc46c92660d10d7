#!/usr/bin/env python3
"""Baseline for `gpttrain bench` on several ranks: seconds per training step of a GPT in Megatron-core on the CPU, over gloo.

    build/hf/bin/python tests/bench/megatron_gpt.py TP PP DP [--layers 8 --hidden 512 --heads 8 --seq 256 --vocab 8192 --batch 8]

FP32, one thread a rank, AdamW, the norm of gradients; its clipping and its fused kernels need CUDA. --micro_batch M: samples of a microbatch.
"""
import argparse
import os
import pathlib
import sys
import tempfile
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "readers"))
import megatron_cpu  # first
import torch

from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
for name in "tp", "pp", "dp":
    parser.add_argument(name, type=int)
for name, value in dict(layers=8, hidden=512, heads=8, seq=256, vocab=8192, batch=8, micro_batch=8, steps=6, warmup=2).items():
    parser.add_argument("--" + name, type=int, default=value)
args = parser.parse_args()


def train(rank, world):
    parallel_state.initialize_model_parallel(args.tp, args.pp)
    stage = parallel_state.get_pipeline_model_parallel_rank()
    config = TransformerConfig(
        num_layers=args.layers, hidden_size=args.hidden, num_attention_heads=args.heads, tensor_model_parallel_size=args.tp,
        pipeline_model_parallel_size=args.pp, pipeline_dtype=torch.float32, params_dtype=torch.float32, use_cpu_initialization=True,
        hidden_dropout=0, attention_dropout=0, bias_activation_fusion=True, bias_dropout_fusion=False, masked_softmax_fusion=False,
        batch_p2p_comm=False, finalize_model_grads_func=finalize_model_grads)
    model = GPTModel(config, get_gpt_layer_local_spec(), args.vocab, args.seq, pre_process=stage == 0, post_process=stage == args.pp - 1,
                     share_embeddings_and_output_weights=True, position_embedding_type="learned_absolute")
    ddp = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-4, clip_grad=0.0, params_dtype=torch.float32), [ddp])
    positions, mask = torch.arange(args.seq)[None], torch.triu(torch.ones(1, 1, args.seq, args.seq, dtype=torch.bool), 1)

    def forward_step(iterator, module):
        sample = next(iterator)
        out = module(sample[:, :-1], positions.expand(len(sample), -1), mask, labels=sample[:, 1:])
        return out, lambda losses: (losses.mean(), {})

    own, times = args.batch // args.dp, []
    micro = min(args.micro_batch, own)
    for _ in range(args.warmup + args.steps):
        samples = torch.randint(0, args.vocab, (own, args.seq + 1)).split(micro)
        torch.distributed.barrier()
        begin = time.perf_counter()
        ddp.zero_grad_buffer()
        optimizer.zero_grad()
        get_forward_backward_func()(forward_step_func=forward_step, data_iterator=iter(samples), model=[ddp],
                                    num_microbatches=len(samples), seq_length=args.seq, micro_batch_size=micro, forward_only=False)
        optimizer.prepare_grads()
        optimizer.get_grad_norm()
        optimizer.step_with_ready_grads()
        torch.distributed.barrier()
        times.append(time.perf_counter() - begin)
    median = sorted(times[args.warmup:])[args.steps // 2]
    if rank == 0:
        print(f"{world} ranks, {args.batch} x {args.seq}: median {median:.4f} s a step ({args.steps} steps)")
        print(f"{args.batch * args.seq / median:.0f} tokens/s", flush=True)


def main():
    world = args.tp * args.pp * args.dp
    children = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(world):
            child = os.fork()
            if child == 0:
                try:
                    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
                    train(rank, world)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(1)
            children.append(child)
        sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


main()
