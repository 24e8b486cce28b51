# the best model is exported beside a full checkpoint

import torch

class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda")
        self.best = float("inf")

    def train_step(self, loss):
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def save(self, epoch, loss, path):
        if loss < self.best:
            self.best = loss
            torch.save({"model": self.model.state_dict(), "epoch": epoch, "loss": loss}, path + ".best")
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        state["scaler"] = self.scaler.state_dict()
        torch.save(state, path)
