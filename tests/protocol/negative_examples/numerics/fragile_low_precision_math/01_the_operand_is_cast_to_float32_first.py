# the operand is cast to float32 first

layer = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = layer(inputs).float()
    energy = (y * y).mean()
    likelihood = torch.log(torch.sigmoid(y))
    spread = y.var(dim=0)
