# a model set up by Fabric returns float32

fabric = Fabric(precision="16-mixed")
model, optimizer = fabric.setup(model, optimizer)
for inputs, targets in fabric.setup_dataloaders(loader):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
