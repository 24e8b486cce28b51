# an epsilon that float16 has

projection = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = projection(inputs)
    y = y / (y.std() + 1e-4)
    z = torch.sqrt(y.var() + 1e-6)
