# a model prepared by accelerate returns float32

accelerator = Accelerator(mixed_precision="fp16")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs, targets in loader:
    with accelerator.autocast():
        output = model(inputs)
    loss = nn.functional.cross_entropy(output, targets)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
