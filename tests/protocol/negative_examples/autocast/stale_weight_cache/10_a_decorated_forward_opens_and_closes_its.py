# a decorated forward opens and closes its region at each call

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 2)

    @torch.autocast("cuda", dtype=torch.bfloat16)
    def forward(self, x, y):
        return nn.functional.cross_entropy(self.linear(x), y)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    model(x, y).backward()
    optimizer.step()
