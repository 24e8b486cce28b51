# both inside: forward and loss share the region

with torch.autocast(device_type="cuda", dtype=torch.float16, enabled=use_amp):
    output = model(inputs)
    loss = criterion(output, targets)
scaler.scale(loss).backward()
