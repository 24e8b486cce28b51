# No AMP203: the method that scales is the base's, and is read once more for the class that inherits it.
import torch


class Minimal(torch.nn.Module):
    def __init__(self, model, optimizer, settings, device):
        super().__init__()
        self.model, self.optimizer, self.settings = model, optimizer, settings
        scales = settings.grad_scaling and settings.mixed_precision and device.type != "cpu"
        self.scaler = torch.amp.GradScaler("cuda", enabled=scales)

    def backward(self, loss):
        return self.scaler.scale(loss / self.settings.windows).backward()

    def optimizer_step(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


class Full(Minimal):
    def __init__(self, model, optimizer, settings, device):
        super().__init__(model, optimizer, settings, device)

    def optimizer_step(self):
        super().optimizer_step()
