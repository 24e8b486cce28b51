# the step is the last thing in its region, so no forward sees the stale copies

for inputs, targets in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
