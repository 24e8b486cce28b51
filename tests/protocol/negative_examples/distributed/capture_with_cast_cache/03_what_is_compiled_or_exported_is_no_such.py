# what is compiled or exported is no such capture

model = torch.nn.Linear(8, 2)
with torch.autocast("cpu", dtype=torch.bfloat16):
    exported = torch.export.export(model, (torch.randn(4, 8),))
    output = torch.compile(model)(torch.randn(4, 8))
