# the second optimizer steps every n-th iteration, on gradients made after the update

import torch

def train(generator, critic, opt_g, opt_c, loader, g_loss, c_loss, n_critic):
    scaler = torch.amp.GradScaler("cuda")
    for i, (real, noise) in enumerate(loader):
        opt_c.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss_c = c_loss(critic(real), critic(generator(noise).detach()))
        scaler.scale(loss_c).backward()
        scaler.step(opt_c)
        scaler.update()
        if i % n_critic == 0:
            opt_g.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss_g = g_loss(critic(generator(noise)))
            scaler.scale(loss_g).backward()
            scaler.step(opt_g)
            scaler.update()
