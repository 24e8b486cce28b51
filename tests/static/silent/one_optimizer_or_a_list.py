# A function gives a list of optimizers or one of them: who asks for a list has the list.
import torch
from accelerate import Accelerator


def build(model, name):
    if name == "muon":
        matrices = [p for p in model.parameters() if p.ndim == 2]
        others = [p for p in model.parameters() if p.ndim != 2]
        return [torch.optim.Muon(matrices), torch.optim.AdamW(others)]
    return torch.optim.AdamW(model.parameters())


class Trainer:
    def __init__(self, model, loader, name):
        self.accelerator = Accelerator(mixed_precision="fp16")
        self.optimizer = build(model, name)
        if isinstance(self.optimizer, list):
            self.muon, self.adamw = self.optimizer
            self.model, self.muon, self.adamw, self.loader = self.accelerator.prepare(
                model, self.muon, self.adamw, loader
            )
        else:
            self.muon = None
            self.model, self.adamw, self.loader = self.accelerator.prepare(model, self.optimizer, loader)

    def train(self):
        for batch in self.loader:
            with self.accelerator.accumulate(self.model):
                loss = self.model(**batch).loss
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                    if self.muon is not None:
                        self.muon.step()
                        self.muon.zero_grad()
                    self.adamw.step()
                    self.adamw.zero_grad()
