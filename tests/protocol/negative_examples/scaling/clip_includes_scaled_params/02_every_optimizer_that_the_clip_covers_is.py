# every optimizer that the clip covers is unscaled

import torch

def train_step(encoder, decoder, opt_e, opt_d, scaler, loss):
    opt_e.zero_grad()
    opt_d.zero_grad()
    scaler.scale(loss).backward()
    for optimizer in (opt_e, opt_d):
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_([*encoder.parameters(), *decoder.parameters()], 1.0)
    for optimizer in (opt_e, opt_d):
        scaler.step(optimizer)
    scaler.update()
