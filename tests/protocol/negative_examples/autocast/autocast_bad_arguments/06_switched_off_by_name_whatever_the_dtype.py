# switched off by name, whatever the dtype

with torch.autocast("cpu", dtype=torch.float32, enabled=False):
    output = model(inputs)
