# No AMP101: what runs after the step within the region is another model, whose weights nobody has changed yet.
import torch


def train(build, build_critic, loader, adversarial, reconstruction):
    generator, critic = build(), build_critic()
    optimizer_g = torch.optim.Adam(generator.parameters())
    optimizer_d = torch.optim.Adam(critic.parameters())
    scaler_g, scaler_d = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")
    for images in loader:
        optimizer_g.zero_grad()
        with torch.autocast("cuda"):
            fake = generator(images)
            loss_g = reconstruction(fake, images) + adversarial(critic(fake), True)
            scaler_g.scale(loss_g).backward()  # noqa: AMP103
            scaler_g.step(optimizer_g)
            scaler_g.update()
            optimizer_d.zero_grad()
            loss_d = adversarial(critic(fake.detach()), False) + adversarial(critic(images), True)
        scaler_d.scale(loss_d).backward()
        scaler_d.step(optimizer_d)
        scaler_d.update()
