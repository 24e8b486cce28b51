# the limit of the tensor's own dtype

with torch.autocast("cuda", dtype=torch.float16):
    scores = torch.matmul(query, key.transpose(-2, -1))
    scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
