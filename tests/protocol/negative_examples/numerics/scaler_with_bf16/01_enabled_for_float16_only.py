# enabled for float16 only

dtype = torch.bfloat16
scaler = torch.amp.GradScaler("cuda", enabled=(dtype == torch.float16))
for inputs, targets in loader:
    with torch.autocast("cuda", dtype=dtype):
        loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
