# a subclass of GradScaler

class LoggingScaler(torch.amp.GradScaler):
    def update(self, new_scale=None):
        super().update(new_scale)
        print(self.get_scale())


scaler = LoggingScaler("cuda")
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
