# the output is float32 by the time the loss sees it

with torch.autocast("cuda", dtype=torch.float16):
    output = model(inputs)
loss = nn.functional.cross_entropy(output.float(), targets)
scaler.scale(loss).backward()
