# a LightningModule whose Trainer trains in float32

import lightning as L
import torch.nn.functional as F

class Classifier(L.LightningModule):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.binary_cross_entropy(self(x).sigmoid(), y)

trainer = L.Trainer(max_epochs=3)
