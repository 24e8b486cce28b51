# DistributedDataParallel runs in the thread that calls it

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.linear(x)


model = torch.nn.parallel.DistributedDataParallel(Net())
with torch.autocast("cuda", dtype=torch.bfloat16):
    output = model(inputs)
