# squares of what is bounded

layer = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    p = torch.sigmoid(layer(inputs))
    overlap = (p * p).mean()
    spread = torch.tanh(layer(inputs)).var()
