# in a region that is switched off, in float32

with torch.autocast("cuda", dtype=torch.float16):
    probability = model(inputs)
    with torch.autocast("cuda", enabled=False):
        loss = nn.functional.binary_cross_entropy(probability.float(), targets.float())
scaler.scale(loss).backward()
