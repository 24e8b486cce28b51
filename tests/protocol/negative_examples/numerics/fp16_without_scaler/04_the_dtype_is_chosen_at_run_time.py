# the dtype is chosen at run time

def train(model, loader, optimizer, criterion, dtype):
    for inputs, targets in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype):
            loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
