# after the region, in float32

criterion = nn.BCELoss()
with torch.autocast("cuda", dtype=torch.float16):
    logits = model(inputs)
loss = criterion(torch.sigmoid(logits.float()), targets)
scaler.scale(loss).backward()
