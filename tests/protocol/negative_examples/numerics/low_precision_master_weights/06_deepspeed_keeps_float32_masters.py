# DeepSpeed keeps float32 masters

model = Net().half()
engine, optimizer, _, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config={"fp16": {"enabled": True}, "optimizer": {"type": "Adam"}}
)
for inputs, targets in loader:
    engine.backward(criterion(engine(inputs.half()), targets))
    engine.step()
