# bfloat16 does not overflow

layer = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.bfloat16):
    y = layer(inputs)
    energy = (y * y).mean()
    spread = y.var(dim=0)
    likelihood = torch.log(torch.sigmoid(y))
