# traced outside, used inside

model = torch.nn.Linear(8, 2)
traced = torch.jit.trace(model, torch.randn(4, 8))
with torch.autocast("cpu", dtype=torch.bfloat16):
    output = traced(torch.randn(4, 8))
