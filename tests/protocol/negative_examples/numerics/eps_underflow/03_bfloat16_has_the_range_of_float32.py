# bfloat16 has the range of float32

projection = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.bfloat16):
    y = projection(inputs)
    y = y / (y.std() + 1e-8)
