# the bfloat16 path goes around the scaler

scaler = torch.amp.GradScaler("cuda") if args.dtype == "float16" else None
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=DTYPES[args.dtype]):
        loss = criterion(model(inputs), targets)
    if scaler is not None:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        optimizer.step()
