# Fabric's optimizer calls the scaler inside step()

from lightning.fabric import Fabric

def train(model, optimizer, loader, loss_fn):
    fabric = Fabric(precision="16-mixed")
    model, optimizer = fabric.setup(model, optimizer)
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
