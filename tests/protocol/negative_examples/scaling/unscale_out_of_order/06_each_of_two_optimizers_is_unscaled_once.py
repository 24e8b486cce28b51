# each of two optimizers is unscaled once

import torch

def train_step(encoder, decoder, opt_e, opt_d, scaler, loss):
    opt_e.zero_grad()
    opt_d.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt_e)
    scaler.unscale_(opt_d)
    torch.nn.utils.clip_grad_norm_([*encoder.parameters(), *decoder.parameters()], 1.0)
    scaler.step(opt_e)
    scaler.step(opt_d)
    scaler.update()
