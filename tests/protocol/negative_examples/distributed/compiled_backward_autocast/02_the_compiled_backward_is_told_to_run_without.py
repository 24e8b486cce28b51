# the compiled backward is told to run without autocast

import torch._functorch.config


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.precise = nn.Linear(8, 4)

    def forward(self, x):
        with torch.autocast("cuda", enabled=False):
            return self.precise(x.float())


torch._functorch.config.backward_pass_autocast = "off"
model = torch.compile(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
