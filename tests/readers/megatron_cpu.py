"""Makes Megatron-core train on the CPU, one thread a process; import it before anything of Megatron.

Three things of CUDA are replaced: the current device, tensors made on or moved to "cuda", and the tracker of random states (no dropout).
"""
import contextlib
import os
import warnings

os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
warnings.filterwarnings("ignore")
import torch

torch.set_num_threads(1)
torch.cuda.current_device = lambda: torch.device("cpu")
torch.Tensor.cuda = lambda self, *_, **__: self


def on_cpu(make):
    def made(*args, device=None, **more):
        return make(*args, device="cpu" if str(device).startswith("cuda") else device, **more)
    return made


torch.zeros, torch.tensor, torch.empty = on_cpu(torch.zeros), on_cpu(torch.tensor), on_cpu(torch.empty)

from megatron.core.tensor_parallel import random as parallel_random


class NoRandomStates:
    def fork(self, *_):
        return contextlib.nullcontext()

    def is_initialized(self):
        return True


parallel_random._CUDA_RNG_STATE_TRACKER = NoRandomStates()
parallel_random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
