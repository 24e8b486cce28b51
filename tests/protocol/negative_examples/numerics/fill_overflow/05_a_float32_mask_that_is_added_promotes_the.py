# a float32 mask that is added promotes the scores to float32

bias = torch.zeros(length, length).masked_fill(causal_mask, -1e9)
with torch.autocast("cuda", dtype=torch.float16):
    scores = torch.matmul(query, key.transpose(-2, -1)) + bias
    weights = scores.softmax(dim=-1)
