# No AMP301: the loss is a parameter of an inner function; it was divided in another inner function.
import torch


def create(model, optimizer, criterion, config, backend):
    k = config.get("k", 1)
    scaler = torch.amp.GradScaler("cuda")

    def forward(batch):
        x, y = batch
        with torch.autocast("cuda"):
            loss = criterion(model(x), y) / k
        return loss

    def plain(engine, loss):
        scaler.scale(loss).backward()
        if engine.state.iteration % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    def other(engine, loss):
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    backward = other if backend == "horovod" else plain

    def step(engine, batch):
        loss = forward(batch)
        backward(engine, loss)
        return loss.item()

    return step
