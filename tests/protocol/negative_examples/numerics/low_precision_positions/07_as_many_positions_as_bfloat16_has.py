# as many positions as bfloat16 has

layer = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.bfloat16):
    x = layer(inputs)
    t = torch.arange(128).to(x.dtype)
    phase = (t * 0.01).sin()
