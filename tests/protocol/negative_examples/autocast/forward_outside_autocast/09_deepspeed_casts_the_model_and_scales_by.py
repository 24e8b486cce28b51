# DeepSpeed casts the model and scales by itself

engine, optimizer, _, _ = deepspeed.initialize(model=model, config={"fp16": {"enabled": True}})
for inputs, targets in loader:
    loss = criterion(engine(inputs), targets)
    engine.backward(loss)
    engine.step()
