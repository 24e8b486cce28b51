# No AMP203 and AMP204: what an open window holds when its loop is left by `break` is not met by a call of the
# function with another `use_amp`.
import torch


def train(model, data, optimizer, scaler, k, length):
    use_amp = scaler is not None
    for i in range(length):
        if data.exhausted():
            break
        with torch.autocast("cuda", enabled=use_amp):
            loss = model(next(data)).mean() / k
        if use_amp:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if (i + 1) % k == 0:
            if use_amp:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
