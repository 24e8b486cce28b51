# CUDA's autocast computes softmax, norm and sum in float32

projection = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = projection(inputs)
    entropy = -torch.log(y.softmax(dim=-1) + 1e-12).sum()
    unit = y / (y.norm(dim=-1, keepdim=True) + 1e-8)
    share = y / (y.sum() + 1e-8)
