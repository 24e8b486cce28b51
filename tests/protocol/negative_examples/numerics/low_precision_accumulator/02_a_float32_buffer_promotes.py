# a float32 buffer promotes

model = nn.Linear(8, 1)
total = torch.zeros(1)
for inputs in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        score = model(inputs).mean()
    total += score
