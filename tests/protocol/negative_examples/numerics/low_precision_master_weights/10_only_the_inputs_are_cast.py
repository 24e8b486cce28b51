# only the inputs are cast

model = Net()
optimizer = torch.optim.AdamW(model.parameters())
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(inputs.to("cuda", torch.bfloat16)), targets)
    loss.backward()
    optimizer.step()
