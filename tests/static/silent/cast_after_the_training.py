# No AMP501: what is cast to float16 after its last step is trained in float32. Between two epochs a copy is cast.
import copy

import torch


def train(loader, epochs, validate, path):
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(epochs):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        low = copy.deepcopy(model).half()
        with torch.no_grad():
            print(validate(low(next(iter(loader))[0].half())))
    model.half()
    torch.save(model.state_dict(), path)


def calibrate(layers, inputs, targets, epochs):
    for layer in layers:
        wrapped = torch.nn.Sequential(layer, torch.nn.Linear(8, 8)).cuda()
        if epochs > 0:
            wrapped.float()
            optimizer = torch.optim.AdamW(wrapped.parameters())
            scaler = torch.amp.GradScaler()
            for _ in range(epochs):
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(wrapped(inputs), targets)
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            del optimizer
            wrapped.half()
