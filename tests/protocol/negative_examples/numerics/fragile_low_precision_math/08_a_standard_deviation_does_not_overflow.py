# a standard deviation does not overflow

layer = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = layer(inputs)
    spread = y.std(dim=0)
