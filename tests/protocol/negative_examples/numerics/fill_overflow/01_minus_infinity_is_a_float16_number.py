# minus infinity is a float16 number

with torch.autocast("cuda", dtype=torch.float16):
    scores = torch.matmul(query, key.transpose(-2, -1))
    scores = scores.masked_fill(causal_mask, float("-inf"))
    weights = scores.softmax(dim=-1)
