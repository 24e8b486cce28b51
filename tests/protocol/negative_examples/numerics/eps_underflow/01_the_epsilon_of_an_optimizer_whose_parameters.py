# the epsilon of an optimizer, whose parameters are float32

optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-8)
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
