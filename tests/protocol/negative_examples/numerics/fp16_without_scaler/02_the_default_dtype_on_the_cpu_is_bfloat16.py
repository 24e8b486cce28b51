# the default dtype on the CPU is bfloat16

for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu"):
        loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
