# bfloat16 holds 1e9

with torch.autocast("cuda", dtype=torch.bfloat16):
    scores = torch.matmul(query, key.transpose(-2, -1))
    scores = scores.masked_fill(mask, -1e9)
