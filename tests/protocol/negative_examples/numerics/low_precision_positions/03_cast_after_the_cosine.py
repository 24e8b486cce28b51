# cast after the cosine

layer = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.bfloat16):
    x = layer(inputs)
    t = torch.arange(4096).float()
    cosine = (t[:, None] * inverse[None, :]).cos().to(x.dtype)
