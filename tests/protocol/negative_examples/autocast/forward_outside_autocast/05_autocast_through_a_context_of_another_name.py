# autocast through a context of another name

amp_cm = torch.autocast("cuda", dtype=torch.float16) if use_amp else contextlib.nullcontext()
scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
for inputs, targets in loader:
    optimizer.zero_grad()
    with amp_cm:
        loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
