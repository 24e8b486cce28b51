# weights that need no gradients are not kept

model = torch.nn.Linear(8, 2)
model.requires_grad_(False)
with torch.autocast("cpu", dtype=torch.bfloat16):
    traced = torch.jit.trace(model, torch.randn(4, 8))
