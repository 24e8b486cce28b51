# DeepSpeed's engine knows the window

import deepspeed
import torch.nn.functional as F

def train(net, loader, config):
    engine, optimizer, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    for x, y in loader:
        engine.backward(F.cross_entropy(engine(x), y))
        engine.step()
