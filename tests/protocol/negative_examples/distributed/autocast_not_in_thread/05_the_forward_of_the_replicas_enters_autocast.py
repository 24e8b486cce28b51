# the forward of the replicas enters autocast itself

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 2)

    @torch.autocast("cuda", dtype=torch.bfloat16)
    def forward(self, x):
        return self.linear(x)


model = torch.nn.DataParallel(Net())
with torch.autocast("cuda", dtype=torch.bfloat16):
    output = model(inputs)
