# the module is not compiled

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.precise = nn.Linear(8, 4)

    def forward(self, x):
        with torch.autocast("cuda", enabled=False):
            return self.precise(x.float())


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
