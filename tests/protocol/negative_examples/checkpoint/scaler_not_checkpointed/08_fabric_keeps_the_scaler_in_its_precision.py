# Fabric keeps the scaler in its precision plugin

from lightning.fabric import Fabric

def train(model, optimizer, loader, loss_fn, path):
    fabric = Fabric(precision="16-mixed")
    model, optimizer = fabric.setup(model, optimizer)
    for x, y in loader:
        optimizer.zero_grad()
        fabric.backward(loss_fn(model(x), y))
        optimizer.step()
    fabric.save(path, {"model": model, "optimizer": optimizer, "precision": fabric.strategy.precision})
