# a helper enters autocast

def compute_loss(model, criterion, inputs, targets):
    with torch.autocast("cuda", dtype=torch.float16):
        return criterion(model(inputs), targets)


scaler = torch.amp.GradScaler("cuda")
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = compute_loss(model, criterion, inputs, targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
