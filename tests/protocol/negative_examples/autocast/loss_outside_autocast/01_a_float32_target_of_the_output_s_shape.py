# a float32 target of the output's shape promotes the loss to float32

for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        output = model(inputs)
    loss = nn.functional.mse_loss(output, targets.float())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
