# frequencies that are made of an arange are no positions, nor is a short buffer of them

class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inverse", 10000.0 ** -(torch.arange(0, 512, 2).float() / 512))
        self.register_buffer("bins", torch.arange(64).float())

    def forward(self, x, y):
        return (x @ self.inverse).cos() + (y @ self.bins).cos()


rotary = Rotary()
with torch.autocast("cuda", dtype=torch.bfloat16):
    z = rotary(x, y)
