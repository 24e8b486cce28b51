# the region is entered anew for each iteration

def train(model, loader, optimizer, scaler, criterion):
    for inputs, targets in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
