# the backward is accelerate's

accelerator = Accelerator(mixed_precision="fp16")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs, targets in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(inputs), targets)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
