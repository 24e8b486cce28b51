# a compiled forward runs without the cache

model = torch.compile(Decoder(config))
optimizer = torch.optim.AdamW(model.parameters())
with torch.autocast("cuda", dtype=torch.bfloat16):
    for inputs, targets in loader:
        loss = model(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
