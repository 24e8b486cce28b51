# an elementwise product stays in float32

with torch.autocast("cuda", dtype=torch.bfloat16):
    t = torch.arange(4096).float()
    angles = t[:, None] * inverse[None, :]
    cosine, sine = angles.cos(), angles.sin()
    angles = torch.outer(t, inverse)
    cosine = angles.cos()
