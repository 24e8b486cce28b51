# a cast to float32 or to a device

model = Net().to("cuda").float()
optimizer = torch.optim.AdamW(model.parameters())
for inputs, targets in loader:
    optimizer.zero_grad()
    criterion(model(inputs), targets).backward()
    optimizer.step()
