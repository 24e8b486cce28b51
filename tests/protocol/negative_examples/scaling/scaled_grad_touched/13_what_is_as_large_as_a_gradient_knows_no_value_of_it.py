# what is as large as a gradient knows no value of it

for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    noise = [torch.randn_like(p.grad) for p in model.parameters()]
    scaler.unscale_(optimizer)
    for p, n in zip(model.parameters(), noise):
        p.grad.add_(n, alpha=0.01)
    scaler.step(optimizer)
    scaler.update()
