# the model's forward opens the region

class Net(nn.Module):
    def __init__(self, use_amp):
        super().__init__()
        self.use_amp = use_amp
        self.linear = nn.Linear(8, 2)

    def forward(self, x, y):
        with torch.autocast("cuda", dtype=torch.float16, enabled=self.use_amp):
            return nn.functional.cross_entropy(self.linear(x), y)


model = Net(use_amp=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    scaler.scale(model(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
