# the maximum is subtracted before the exponential

layer = nn.Linear(8, 8)
with torch.autocast("cpu", dtype=torch.float16):
    y = layer(inputs)
    highest = y.max(dim=-1, keepdim=True).values
    total = torch.log(torch.exp(y - highest).sum(dim=-1)) + highest.squeeze(-1)
