# a training without autocast

criterion = nn.BCELoss()
for real, fake in loader:
    optimizer.zero_grad()
    loss = criterion(discriminator(real), torch.ones(len(real), 1))
    loss.backward()
    optimizer.step()
