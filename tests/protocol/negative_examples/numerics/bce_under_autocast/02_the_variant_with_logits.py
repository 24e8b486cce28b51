# the variant with logits

criterion = nn.BCEWithLogitsLoss()
with torch.autocast("cuda", dtype=torch.float16):
    loss = criterion(model(inputs), targets)
scaler.scale(loss).backward()
