# As cleared_before_the_epoch.py, where a class of the project's own steps at the end of a window.
import torch


class NativeScaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cuda")

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, update_grad=True):
        self._scaler.scale(loss).backward()
        if update_grad:
            self._scaler.unscale_(optimizer)
            if clip_grad is not None:
                torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
            self._scaler.step(optimizer)
            self._scaler.update()


def train_one_epoch(model, loader, optimizer, loss_scaler, max_norm=0, update_freq=None):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            loss = (model(x) - y).square().mean()
        loss /= update_freq
        loss_scaler(
            loss, optimizer, clip_grad=max_norm, parameters=model.parameters(), update_grad=(i + 1) % update_freq == 0
        )
        if (i + 1) % update_freq == 0:
            optimizer.zero_grad()


def main(model, loader, args):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_scaler = NativeScaler()
    for _ in range(args.epochs):
        train_one_epoch(model, loader, optimizer, loss_scaler, args.clip_grad, args.update_freq)
