# an Accelerator that does not know the window divides by one

from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn, k):
    accelerator = Accelerator(mixed_precision="fp16")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / k
        accelerator.backward(loss)
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
