# backward and step inside a region that is switched off

with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = criterion(model(inputs), targets)
    with torch.autocast("cuda", enabled=False):
        loss.backward()
optimizer.step()
optimizer.zero_grad()
