# CUDA's autocast computes pow, sum, softmax, exp and log in float32

layer = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = layer(inputs)
    likelihood = torch.log(torch.softmax(y, dim=-1))
    total = torch.log(torch.exp(y).sum(dim=-1))
    energy = ((y - y.mean()) ** 2).mean()
    length = y.pow(2).sum().sqrt()
