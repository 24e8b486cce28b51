# an op outside of torch whose inputs are cast to one dtype

import compiled_ops
import torch
from torch import nn


class Convolve(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return compiled_ops.convolve(x, weight)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        return compiled_ops.convolve_backward(grad, *ctx.saved_tensors)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 3, 1)
        self.weight = nn.Parameter(torch.randn(3, 1, 3, 3))

    def forward(self, x):
        return Convolve.apply(self.first(x), self.weight)


model = Layer()
with torch.autocast("cuda"):
    loss = model(torch.randn(1, 3, 8, 8)).mean()
loss.backward()
