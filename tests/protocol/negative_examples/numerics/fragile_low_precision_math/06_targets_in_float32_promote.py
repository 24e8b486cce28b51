# targets in float32 promote

layer = nn.Linear(8, 8)
targets = torch.randn(4, 8)
with torch.autocast("cuda", dtype=torch.float16):
    difference = layer(inputs) - targets
    loss = (difference * difference).mean()
