# the optimizer's own class clears after its step

import torch

class ZeroingAdamW(torch.optim.AdamW):
    def step(self, closure=None):
        result = super().step(closure)
        self.zero_grad()
        return result

def train(model, loader, loss_fn):
    optimizer = ZeroingAdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
