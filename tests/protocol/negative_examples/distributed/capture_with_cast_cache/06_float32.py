# float32

model = torch.nn.Linear(8, 2)
with torch.autocast("cpu", enabled=False):
    traced = torch.jit.trace(model, torch.randn(4, 8))
