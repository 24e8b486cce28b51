# a region switched off on purpose, with the output cast

with torch.autocast("cuda", dtype=torch.float16):
    output = model(inputs)
    with torch.autocast("cuda", enabled=False):
        loss = nn.functional.cross_entropy(output.float(), targets)
scaler.scale(loss).backward()
