# in a region that is switched off

with torch.autocast("cuda", dtype=torch.bfloat16):
    with torch.autocast("cuda", enabled=False):
        t = torch.arange(4096).float()
        angles = torch.einsum("i,j->ij", t, inverse)
        cosine, sine = angles.cos(), angles.sin()
