"""Routers that transformers 4 computes in FP32 and cannot add to FP64: in the dtype of the model instead."""
from torch.nn.functional import linear


def forward(self, x):
    scores = linear(x.flatten(0, -2), self.weight).sigmoid()
    chosen = self.get_topk_indices(scores)
    weights = scores.gather(1, chosen)
    if self.norm_topk_prob:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return chosen, weights * self.routed_scaling_factor


def exact_routers(model):
    for module in model.modules():
        if hasattr(module, "get_topk_indices"):
            type(module).forward = forward
    return model
