# one way divides and calls backward, the other calls accelerator.backward

from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn, k, plain):
    accelerator = Accelerator(gradient_accumulation_steps=k)
    for x, y in loader:
        loss = loss_fn(model(x), y)
        if plain:
            loss = loss / k
            loss.backward()
        else:
            accelerator.backward(loss)
