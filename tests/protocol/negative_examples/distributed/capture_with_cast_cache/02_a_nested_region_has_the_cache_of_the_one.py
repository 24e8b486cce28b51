# a nested region has the cache of the one around it

model = torch.nn.Linear(8, 2)
with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        traced = torch.jit.trace(model, torch.randn(4, 8))
