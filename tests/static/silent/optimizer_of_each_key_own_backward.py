# No AMP206: one backward and one step for each of several optimizers, then a single update.
import torch


class Engine:
    def __init__(self, critics, optims):
        self.critics, self.optims = critics, optims
        self.scaler = torch.amp.GradScaler("cuda")

    def update(self, batches, axes):
        for axis in axes:
            critic = self.critics[str(axis)]
            optimizer = self.optims[str(axis)]
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda"):
                loss = critic(batches[axis]).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(optimizer)
        self.scaler.update()
