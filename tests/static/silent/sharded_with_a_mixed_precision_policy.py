"""A step as torchtitan has it: sharded float32 parameters, bfloat16 by policy, gradients accumulated and clipped."""

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

torch.set_float32_matmul_precision("high")
torch.backends.cuda.matmul.fp32_precision = "tf32"
torch.backends.cudnn.conv.fp32_precision = "tf32"


def train(layers, loader, loss_fn, accumulated, steps):
    model = nn.Sequential(*layers)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step / 100))
    batches = iter(loader)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(accumulated):
            x, y = next(batches)
            loss = loss_fn(model(x), y) / accumulated
            loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm):
            raise RuntimeError("the gradients are not finite")
        optimizer.step()
        scheduler.step()
