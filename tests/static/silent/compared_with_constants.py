# No AMP203: `kind == Kind.APEX` and `kind == Kind.NATIVE` cannot both be true, as constants of one class differ.

import torch
import apex


from elsewhere.kinds import Kind


def backward(task, loss):
    task.optimizer.zero_grad()
    if task.kind == Kind.APEX:
        with apex.amp.scale_loss(loss, task.optimizer) as scaled:
            scaled.backward()
    elif task.kind == Kind.NATIVE:
        task.scaler.scale(loss).backward()
    else:
        loss.backward()


def step(task):
    if task.kind == Kind.NATIVE:
        task.scaler.step(task.optimizer)
        task.scaler.update()
    else:
        task.optimizer.step()


class Step:
    def __call__(self, task):
        with torch.autocast("cuda"):
            loss = task.model(task.x).mean()
        backward(task, loss)
        step(task)
        return task
