# validation has a region of its own

for epoch in range(epochs):
    train_one_epoch(model, loader, optimizer, scaler)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        accuracy = sum((model(x).argmax(-1) == y).sum() for x, y in valid_loader)
