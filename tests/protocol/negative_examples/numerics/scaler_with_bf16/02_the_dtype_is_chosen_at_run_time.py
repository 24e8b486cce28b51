# the dtype is chosen at run time

dtype = torch.get_autocast_dtype("cuda")
scaler = torch.amp.GradScaler("cuda")
for inputs, targets in loader:
    with torch.autocast("cuda", dtype=dtype):
        loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
