# the divided loss is only logged

from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn, k):
    accelerator = Accelerator(gradient_accumulation_steps=k)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    total = 0.0
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = loss_fn(model(x), y)
            total += loss.detach() / k
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
