# the bins of an expectation are no positions

layer = nn.Linear(8, 16)
with torch.autocast("cuda", dtype=torch.float16):
    p = layer(inputs).softmax(dim=-1)
    distance = p @ torch.arange(16).float()
