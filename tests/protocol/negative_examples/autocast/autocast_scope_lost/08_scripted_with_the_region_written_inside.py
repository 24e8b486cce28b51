# scripted, with the region written inside forward

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 2)

    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.float16):
            return self.linear(x)


scripted = torch.jit.script(Net())
