# losses are float32 under autocast

model = nn.Linear(8, 1)
total = 0.0
for inputs, targets in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
    total += loss.detach()
