# the threshold is multiplied by the scale, which is the same as clipping unscaled gradients

import torch

def train_step(model, optimizer, scaler, loss, max_norm):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
