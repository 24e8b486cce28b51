# the scaler lives in another class, which makes the loss it returns

class Amp:
    def __init__(self):
        self.scaler = torch.amp.GradScaler("cuda")

    def scale(self, loss):
        return self.scaler.scale(loss)

    def step(self, optimizer):
        self.scaler.step(optimizer)
        self.scaler.update()


amp = Amp()
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = amp.scale(criterion(model(inputs), targets))
    loss.backward()
    amp.step(optimizer)
