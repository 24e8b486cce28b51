# a base class and its subclass each decorate forward: two objects

class Base(nn.Module):
    @torch.autocast("cuda", dtype=torch.bfloat16)
    def forward(self, x):
        return self.linear(x)


class Derived(Base):
    @torch.autocast("cuda", dtype=torch.bfloat16)
    def forward(self, x):
        return super().forward(x).relu()
