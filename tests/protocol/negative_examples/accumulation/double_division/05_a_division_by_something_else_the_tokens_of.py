# a division by something else: the tokens of the window, with accelerate's own division undone

from accelerate import Accelerator

def train(model, optimizer, windows, loss_fn, k):
    accelerator = Accelerator(gradient_accumulation_steps=k)
    model, optimizer = accelerator.prepare(model, optimizer)
    for window, tokens in windows:
        for x, y in window:
            with accelerator.accumulate(model):
                loss = loss_fn(model(x), y) * k / tokens
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
