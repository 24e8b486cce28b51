# one context object, entered and left once for each iteration

ctx = torch.autocast("cuda", dtype=torch.bfloat16)


def train(model, loader, optimizer):
    for inputs, targets in loader:
        with ctx:
            loss = model(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
