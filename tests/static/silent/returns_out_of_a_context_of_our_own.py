# The block of a context returns from the function around it, however often the context goes on to it.
import signal
from contextlib import contextmanager

import torch


@contextmanager
def default_handler():
    try:
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def ask(prompt):
    with default_handler():
        try:
            if not prompt("stop?"):
                return None
            save = prompt("save?")
        except EOFError:
            return False
    return save


def train(model, loader, optimizer, prompt, stops):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = (model(x) - y).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if stops():
            choice = ask(prompt)
            if choice is not None:
                torch.save(model.state_dict(), "model.pt")
                break
