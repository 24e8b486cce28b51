# the operand is cast to float32

projection = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = projection(inputs).float()
    y = y / (y.std() + 1e-8)
