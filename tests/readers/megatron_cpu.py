"""Makes Megatron-core train on the CPU, one thread a process; import it before anything of Megatron.

What needs CUDA or Transformer Engine is replaced: the current device, tensors made on or moved to "cuda", the tracker of random states
(no dropout), and of experts the streams of their exchange, the sizes of its parts, and the product of the router.
"""
import contextlib
import os
import signal
import sys
import traceback
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


class NoStream:
    """A stream or an event, where everything has happened by the time it is issued."""
    def __getattr__(self, _):
        return lambda *_, **__: self


torch.cuda.Stream = torch.cuda.current_stream = lambda *_, **__: NoStream()
torch.cuda.stream = lambda _: contextlib.nullcontext()

from megatron.core.tensor_parallel import random as parallel_random
from megatron.core.transformer.moe import moe_utils, token_dispatcher


class NoRandomStates:
    def fork(self, *_):
        return contextlib.nullcontext()

    def is_initialized(self):
        return True


parallel_random._CUDA_RNG_STATE_TRACKER = NoRandomStates()
parallel_random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
moe_utils.te_general_gemm = None  # named in the router without Transformer Engine too
# Counts are on the CPU before they are moved there; all_to_all_single takes no tensor of them.
token_dispatcher.maybe_move_tensor_to_cpu = lambda x, as_numpy=False, **_: x.numpy() if as_numpy and torch.is_tensor(x) else x


def on_ranks(count, body):
    """Forks count processes, so that the imports are paid once; fails if one of them does."""
    sys.stdout.flush()
    children = {}
    for rank in range(count):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                body(rank)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children[child] = rank
    while children:
        child, status = os.wait()
        rank = children.pop(child)
        if status != 0:
            for other in children:
                os.kill(other, signal.SIGKILL)
            sys.exit(f"{os.path.basename(sys.argv[0])}: rank {rank} of {count} failed")
