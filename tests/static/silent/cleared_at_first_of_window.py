# No AMP304: gradients are cleared where the cycling counter is 1, which is the first micro-batch of a window.
from itertools import cycle
import torch


def train(model, loader, optimizer, args):
    scaler = torch.amp.GradScaler("cpu")
    for (x, y), part in zip(loader, cycle(range(1, args.k + 1))):
        if part == 1:
            model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = (model(x) - y).square().mean()
            loss /= args.k
        scaler.scale(loss).backward()
        if part % args.k == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
