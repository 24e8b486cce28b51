# a region that is switched off, on inputs in float32

projection = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = projection(inputs)
    with torch.autocast("cuda", enabled=False):
        z = y.float()
        z = z / (z.std() + 1e-8)
