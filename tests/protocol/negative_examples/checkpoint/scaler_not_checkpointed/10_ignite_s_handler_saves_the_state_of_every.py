# ignite's handler saves the state of every object in its dict, the scaler's too

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver

def build(model, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")

    def step(engine, batch):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(batch[0]), batch[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    trainer = Engine(step)
    to_save = {"model": model, "optimizer": optimizer, "trainer": trainer, "amp": scaler}
    trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint(to_save, DiskSaver("out")))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint({"model": model}, DiskSaver("best")))
    return trainer
