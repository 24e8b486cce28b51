# a scaler that is disabled by its literal argument

scaler = torch.amp.GradScaler("cuda", enabled=False)
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
