# The sum over a micro-batch times one over the whole batch is the mean over the window.
import torch


def train(model, loss_fn, batches, optimizer, batch, batch_total, loss_scaling=1):
    rounds = batch_total // batch
    while True:
        optimizer.zero_grad(set_to_none=True)
        for _ in range(rounds):
            images = next(batches)
            loss = loss_fn(net=model, images=images)
            loss.sum().mul(loss_scaling / batch_total).backward()
        optimizer.step()
