# DeepSpeed is told not to divide

import deepspeed

def train(model, config, loader, loss_fn):
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for x, y in loader:
        loss = loss_fn(engine(x), y) / engine.gradient_accumulation_steps()
        engine.backward(loss, scale_wrt_gas=False)
        engine.step()
