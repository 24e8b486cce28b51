# No AMP209: the second unscale_ runs only if the scaler's own record says that the first has not.
import torch
from torch.amp.grad_scaler import OptState


class Trainer:
    def __init__(self, model, optimizer, norm, value):
        self.model, self.optimizer, self.norm, self.value = model, optimizer, norm, value
        self.scaler = torch.amp.GradScaler("cuda")

    def clip_value(self):
        if self.value is not None:
            state = self.scaler._per_optimizer_states[id(self.optimizer)]
            if state["stage"] is not OptState.UNSCALED:
                self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_value_(self.model.parameters(), self.value)

    def clip_norm(self):
        if self.norm is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.norm)

    def train(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = (self.model(x) - y).square().mean()
            self.scaler.scale(loss).backward()
            self.clip_norm()
            self.clip_value()
            self.scaler.step(self.optimizer)
            self.scaler.update()
