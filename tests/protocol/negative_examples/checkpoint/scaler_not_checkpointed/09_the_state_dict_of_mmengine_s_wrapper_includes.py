# the state_dict of mmengine's wrapper includes the scaler's

import torch
from mmengine.optim import AmpOptimWrapper

def train(model, optimizer, loader, path):
    wrapper = AmpOptimWrapper(optimizer=optimizer)
    for data in loader:
        with wrapper.optim_context(model):
            loss = model(data)
        wrapper.update_params(loss)
    torch.save({"model": model.state_dict(), "optimizer": wrapper.state_dict()}, path)
