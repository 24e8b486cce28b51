# evaluation under autocast has no backward

@torch.no_grad()
def evaluate(model, loader, criterion):
    total = 0.0
    with torch.autocast("cuda", dtype=torch.float16):
        for inputs, targets in loader:
            total += criterion(model(inputs), targets).item()
    return total
