# the epsilon of a norm layer, which computes in float32

projection = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = projection(inputs)
    y = torch.nn.functional.layer_norm(y, (8,), eps=1e-12)
