# the terms of one batch

model = nn.Linear(8, 1)
for inputs in loader:
    total = 0.0
    with torch.autocast("cuda", dtype=torch.float16):
        parts = model(inputs)
    for i in range(len(parts)):
        total = total + parts[i]
    total.backward()
