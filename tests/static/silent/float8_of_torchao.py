"""A training in float8: torchao swaps the linear layers, bfloat16 weights are rounded stochastically."""

import torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training, precompute_float8_dynamic_scale_for_fsdp
from torchao.optim import _AdamW


def train(loader, loss_fn):
    model = nn.Sequential(nn.Linear(2048, 4096, bias=False), nn.Linear(4096, 128)).to("cuda").to(torch.bfloat16)
    config = Float8LinearConfig.from_recipe_name("tensorwise")
    model = convert_to_float8_training(model, config=config, module_filter_fn=lambda m, name: name != "1")
    model = torch.compile(model)
    optimizer = _AdamW(model.parameters(), lr=1e-4, bf16_stochastic_round=True)
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        precompute_float8_dynamic_scale_for_fsdp(model)
