# bfloat16 needs no scaler

for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
