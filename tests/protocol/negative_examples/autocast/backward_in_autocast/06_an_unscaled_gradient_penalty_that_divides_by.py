# an unscaled gradient penalty that divides by the scale, as PyTorch's example does

for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(inputs), targets)
    scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    inv_scale = 1.0 / scaler.get_scale()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = loss + sum((g * inv_scale).pow(2).sum() for g in scaled).sqrt()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
