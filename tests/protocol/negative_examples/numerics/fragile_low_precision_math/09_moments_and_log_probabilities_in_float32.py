# moments and log-probabilities in float32

layer = nn.Linear(8, 8)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = layer(inputs).float()
    p = torch.log_softmax(layer(inputs).float(), dim=-1)
    q = torch.log_softmax(layer(targets).float(), dim=-1)
    mean = y.mean(-1)
    spread = (y * y).mean(-1) - mean * mean
    ratio = (p - q).exp()
