# float16 is what replicas run in anyway

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.linear(x)


model = torch.nn.DataParallel(Net())
with torch.autocast("cuda", dtype=torch.float16):
    output = model(inputs)
