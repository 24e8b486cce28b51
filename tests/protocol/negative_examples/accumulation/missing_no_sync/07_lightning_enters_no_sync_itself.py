# Lightning enters no_sync() itself

import lightning as L
import torch
from torch import nn


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 4)

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = L.Trainer(strategy="ddp", devices=2, precision="16-mixed", accumulate_grad_batches=4)
trainer.fit(Module(), loader)
