# No AMP101: the weights are written before anything runs in the region, whose cache is empty then.
import torch

from quantize import Truncate


def cut(value, threshold=1e-2):
    return Truncate.apply(value, threshold)


def smooth(model, args):
    with torch.no_grad():
        for name, module in model.named_parameters():
            if "scale" in name:
                module.data = cut(module)


def train(args, layer, inputs, targets, loss_func, scaler, dev):
    optimizer = torch.optim.AdamW(layer.parameters())
    traincast = torch.cuda.amp.autocast
    for epoch in range(args.epochs):
        for j in range(args.n):
            with traincast():
                smooth(layer, args)
                out = layer(inputs[j])
                loss = loss_func(out, targets[j])
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
