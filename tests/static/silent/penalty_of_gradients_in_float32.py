# No AMP110: a penalty of gradients is derived twice, and kept out of the region on purpose.
import torch


def train(critic, generator, loader, adversarial):
    optimizer_g = torch.optim.Adam(generator.parameters())
    optimizer_d = torch.optim.Adam(critic.parameters())
    scaler_g, scaler_d = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")
    for i, (real, noise) in enumerate(loader):
        optimizer_d.zero_grad()
        with torch.autocast("cuda"):
            fake = generator(noise)
            loss = adversarial(critic(real), True) + adversarial(critic(fake.detach()), False)
        scaler_d.scale(loss).backward()
        scaler_d.step(optimizer_d)
        scaler_d.update()
        if i % 16 == 0:
            real = real.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad(critic(real).sum(), real, create_graph=True)
            penalty = gradient.square().sum([1, 2, 3]).mean()
            optimizer_d.zero_grad()
            scaler_d.scale(penalty * 10).backward()
            scaler_d.step(optimizer_d)
            scaler_d.update()
        optimizer_g.zero_grad()
        with torch.autocast("cuda"):
            loss_g = adversarial(critic(fake), True)
        scaler_g.scale(loss_g).backward()
        scaler_g.step(optimizer_g)
        scaler_g.update()
