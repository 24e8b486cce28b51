# Python numbers

model = nn.Linear(8, 1)
total = 0.0
for inputs in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        score = model(inputs).mean()
    total += score.item()
