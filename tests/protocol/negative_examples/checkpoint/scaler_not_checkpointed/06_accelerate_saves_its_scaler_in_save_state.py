# accelerate saves its scaler in save_state()

from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn, path):
    accelerator = Accelerator(mixed_precision="fp16")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(loss_fn(model(x), y))
        optimizer.step()
    accelerator.save_state(path)
