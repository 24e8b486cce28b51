# a function of which nobody knows where it is called

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.projection = nn.Linear(8, 8)

    def forward(self, inputs):
        y = self.projection(inputs)
        return y / (y.std() + 1e-8)
