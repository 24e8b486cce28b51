# a trainer of ignite that makes its own scaler keeps it in its state, from where it is saved

import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import ModelCheckpoint

def build(model, loss_fn):
    optimizer = torch.optim.AdamW(model.parameters())
    trainer = create_supervised_trainer(model, optimizer, loss_fn, device="cuda", amp_mode="amp", scaler=True)
    to_save = {"model": model, "optimizer": optimizer, "scaler": trainer.state.scaler}
    trainer.add_event_handler(Events.EPOCH_COMPLETED, ModelCheckpoint("out", "last"), to_save)
    return trainer
