# the scaler sits in a wrapper that does all three steps

from timm.utils import NativeScaler

loss_scaler = NativeScaler()
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(inputs), targets)
    loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
