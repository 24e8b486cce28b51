# constructed first, entered later

ctx = torch.autocast("cuda", dtype=torch.bfloat16)
for inputs in loader:
    with ctx, torch.no_grad():
        outputs.append(model(inputs))
