"""Whatever raises in an epoch ends it: who catches that outside starts the training anew, or gives it up."""

import torch
from torch.nn.utils import clip_grad_norm_


class Trainer:
    def __init__(self, model, optimizer, loader, loss_fn):
        self.model, self.optimizer, self.loader, self.loss_fn = model, optimizer, loader, loss_fn
        self.scaler = torch.amp.GradScaler("cuda")

    def train(self, epochs, tries):
        for _ in range(tries):
            try:
                for epoch in range(epochs):
                    self.train_epoch(epoch)
            except Exception as error:
                print("crashed, and is started again", error)
                self.load_checkpoint()

    def train_epoch(self, epoch):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = self.loss_fn(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def load_checkpoint(self):
        state = torch.load("last.pt")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
