# No AMP215: the optimizers that a generator gives in one loop are those that it gives in the next.
from accelerate import Accelerator
from torch import nn


class Trainer(nn.Module):
    def __init__(self, net, batches, accelerator: Accelerator):
        super().__init__()
        self.net = net
        self.batches = batches
        self.accelerator = accelerator
        for name, critic in self.critics():
            setattr(self, name, make_optimizer(critic.parameters()))

    def critics(self):
        for number, critic in enumerate(self.net.critics):
            yield f"optimizer_{number}", critic

    def optimizers(self):
        for name, _ in self.critics():
            yield name, getattr(self, name)

    def train_step(self):
        for name, optimizer in self.optimizers():
            optimizer.zero_grad()
        with self.accelerator.autocast():
            losses = self.net(next(self.batches))
        for name, loss in losses:
            self.accelerator.backward(loss, retain_graph=True)
        for name, optimizer in self.optimizers():
            optimizer.step()

    def train(self, steps):
        for _ in range(steps):
            self.train_step()
