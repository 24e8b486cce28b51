# targets in float32 promote

projection = nn.Linear(8, 8)
weights = torch.ones(8)
with torch.autocast("cuda", dtype=torch.float16):
    y = projection(inputs) * weights
    y = y / (y.std() + 1e-8)
