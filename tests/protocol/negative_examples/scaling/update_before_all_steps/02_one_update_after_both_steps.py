# one update after both steps

import torch

def train(generator, discriminator, opt_g, opt_d, loader, g_loss, d_loss):
    scaler = torch.amp.GradScaler("cuda")
    for real, noise in loader:
        opt_d.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            fake = generator(noise)
            loss_d = d_loss(discriminator(real), discriminator(fake.detach()))
        scaler.scale(loss_d).backward()
        scaler.step(opt_d)
        opt_g.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss_g = g_loss(discriminator(fake))
        scaler.scale(loss_g).backward()
        scaler.step(opt_g)
        scaler.update()
