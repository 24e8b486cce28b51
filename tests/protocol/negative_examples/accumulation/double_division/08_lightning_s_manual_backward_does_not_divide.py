# Lightning's manual_backward does not divide

import lightning as L
import torch.nn.functional as F

class Model(L.LightningModule):
    def __init__(self, k):
        super().__init__()
        self.automatic_optimization = False
        self.k = k

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        loss = F.mse_loss(self(batch[0]), batch[1]) / self.k
        self.manual_backward(loss)
        if (batch_idx + 1) % self.k == 0:
            opt.step()
            opt.zero_grad()
