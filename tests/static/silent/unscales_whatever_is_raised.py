"""Gradients are unscaled in a ``finally``, and clipped by who catches what was raised before it, or after that."""

import torch

scaler = torch.amp.GradScaler("cuda")


def train(model, optimizer, loader, log):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x)
        scaler.scale(loss).backward()
        try:
            try:
                log(loss)
            finally:
                scaler.unscale_(optimizer)
        except OSError:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def train_what_converges(model, optimizer, loader):
    for x in loader:
        optimizer.zero_grad()
        try:
            with torch.autocast("cuda"):
                loss = model(x)
            try:
                scaler.scale(loss).backward()
                if not loss.isfinite():
                    raise ValueError
            finally:
                scaler.unscale_(optimizer)
        except ValueError:
            print("clipped all the same")
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
