# No AMP206 and AMP209: `optimizers[name]` with the loop's own variable is another optimizer in every pass.
import torch


class Optimizers:
    def __init__(self, groups):
        self.parameters = groups
        self.optimizers = {name: torch.optim.SGD(params, lr=0.1) for name, params in groups.items()}

    def step_some(self, scaler, names):
        for name in names:
            optimizer = self.optimizers[name]
            if self.parameters[name] is not None:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(self.parameters[name], 1.0)
            scaler.step(optimizer)


def train(model, loader, optimizers, names):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = (model(x) - y).square().mean()
        scaler.scale(loss).backward()
        optimizers.step_some(scaler, names)
        scaler.update()
        model.zero_grad()
