# No AMP304: what is cleared was added to sums first, which are given back before the step.
import torch


class Trainer:
    def __init__(self, model, criterion, every):
        self.model, self.criterion, self.every = model, criterion, every
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = torch.amp.GradScaler()
        self.sums = {}
        self.steps = 0

    def step(self, inputs, targets):
        with torch.autocast("cuda"):
            loss = self.criterion(self.model(inputs), targets) / self.every
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        for name, parameter in self.model.named_parameters():
            if parameter.grad is None:
                continue
            if name not in self.sums:
                self.sums[name] = 0.0
            self.sums[name] += parameter.grad.clone()
        if (self.steps + 1) % self.every == 0:
            for name, parameter in self.model.named_parameters():
                if name in self.sums:
                    parameter.grad = self.sums[name]
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.sums = {}
        self.steps += 1
