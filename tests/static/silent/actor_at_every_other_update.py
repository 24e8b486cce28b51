# No AMP301: of two losses, one has its backward where its window ends, and the other a step of its own each time.
import torch

from losses import CudaGraphModule, compile_with_warmup, make_losses, make_optimizers


def train(config, loader):
    losses, target = make_losses(config)
    actor_optimizer, critic_optimizer = make_optimizers(config, losses)
    scaler = torch.amp.GradScaler("cuda", enabled=config.amp)

    def update(batch, update_actor):
        critic_loss, *_ = losses.value_loss(batch)
        critic_loss.backward()
        critic_optimizer.step()
        critic_optimizer.zero_grad(set_to_none=True)
        if update_actor:
            actor_loss, *_ = losses.actor_loss(batch)
            actor_loss.backward()
            actor_optimizer.step()
            actor_optimizer.zero_grad(set_to_none=True)
            target.step()

    if config.compiles:
        update = compile_with_warmup(update, warmup=1)
    if config.graphs:
        update = CudaGraphModule(update, warmup=5)
    updates = 0
    for batch in loader:
        for _ in range(config.updates):
            updates += 1
            update_actor = updates % config.delay == 0
            update(batch, update_actor)
