# float32 scores

with torch.autocast("cuda", dtype=torch.float16):
    scores = torch.matmul(query, key.transpose(-2, -1)).float()
    scores = scores.masked_fill(mask, -1e9)
