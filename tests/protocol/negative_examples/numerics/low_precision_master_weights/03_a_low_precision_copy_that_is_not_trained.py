# a low-precision copy that is not trained

model = Net()
average = copy.deepcopy(model).half().eval()
optimizer = torch.optim.AdamW(model.parameters())
for inputs, targets in loader:
    optimizer.zero_grad()
    criterion(model(inputs), targets).backward()
    optimizer.step()
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters()):
            a.lerp_(p.to(a.dtype), 0.01)
