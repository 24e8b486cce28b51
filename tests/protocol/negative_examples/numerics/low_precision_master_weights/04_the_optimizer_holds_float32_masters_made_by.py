# the optimizer holds float32 masters made by hand

model = Net().half()
masters = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(masters, lr=0.1)
for inputs, targets in loader:
    criterion(model(inputs.half()).float(), targets).backward()
    for master, p in zip(masters, model.parameters()):
        master.grad, p.grad = p.grad.float(), None
    optimizer.step()
    for master, p in zip(masters, model.parameters()):
        p.data.copy_(master.data)
