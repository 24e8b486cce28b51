# a test wants the scale to grow at once

import torch

def test_scale_grows(model, optimizer, loss):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=1)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() > 0
