# the generator's backward leaves gradients in the discriminator, which are cleared before its own backward

import torch

def train(generator, discriminator, opt_g, opt_d, loader, g_loss, d_loss):
    scaler = torch.amp.GradScaler("cuda")
    for real, noise in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss_g = g_loss(discriminator(generator(noise)))
        opt_g.zero_grad()
        scaler.scale(loss_g).backward()
        opt_d.zero_grad()
        scaler.step(opt_g)
        with torch.autocast("cuda", dtype=torch.float16):
            loss_d = d_loss(discriminator(real), discriminator(generator(noise).detach()))
        scaler.scale(loss_d).backward()
        scaler.step(opt_d)
        scaler.update()
