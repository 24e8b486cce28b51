# autograd.grad as part of the forward of a penalty

for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        inputs.requires_grad_(True)
        score = critic(inputs)
        gradient = torch.autograd.grad(score.sum(), inputs, create_graph=True)[0]
        loss = score.mean() + (gradient.norm(dim=1) - 1).pow(2).mean()
    loss.backward()
    optimizer.step()
