# a constant inside the range

with torch.autocast("cuda", dtype=torch.float16):
    scores = torch.matmul(query, key.transpose(-2, -1))
    scores = scores.masked_fill(mask == 0, -1e4)
