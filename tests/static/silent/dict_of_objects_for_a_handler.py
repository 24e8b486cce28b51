# No AMP402: a dict of live objects handed to a handler that takes their state_dict() itself.
import torch
from ignite.engine import Engine
from ignite.handlers import Checkpoint, DiskSaver


def create(model, optimizer, config):
    scaler = torch.amp.GradScaler("cuda")

    def step(engine, batch):
        x, y = batch
        with torch.autocast("cuda"):
            loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    trainer = Engine(step)
    to_save = {"model": model, "optimizer": optimizer, "trainer": trainer, "amp": scaler}
    Checkpoint(to_save, DiskSaver("out"))
    if config["resume"]:
        checkpoint = torch.load(config["resume"])
        Checkpoint.load_objects(to_load=to_save, checkpoint=checkpoint)
    return trainer
