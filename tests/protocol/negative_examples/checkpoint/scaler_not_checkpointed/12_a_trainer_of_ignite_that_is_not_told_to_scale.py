# a trainer of ignite that is not told to scale has no scaler

import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import ModelCheckpoint

def build(model, other, loss_fn):
    plain_optimizer = torch.optim.AdamW(other.parameters())
    plain = create_supervised_trainer(other, plain_optimizer, loss_fn, device="cuda", amp_mode="amp")
    to_save = {"model": other, "optimizer": plain_optimizer}
    plain.add_event_handler(Events.EPOCH_COMPLETED, ModelCheckpoint("out", "plain"), to_save)
    optimizer = torch.optim.AdamW(model.parameters())
    scaled = create_supervised_trainer(model, optimizer, loss_fn, device="cuda", amp_mode="amp", scaler=True)
    return plain, scaled
