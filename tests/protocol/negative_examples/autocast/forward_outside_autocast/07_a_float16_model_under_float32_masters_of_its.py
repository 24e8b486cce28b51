# a float16 model under float32 masters of its own needs the scaler and no autocast

model = Net().half()
masters = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(masters, lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for inputs, targets in loader:
    loss = criterion(model(inputs.half()).float(), targets)
    scaler.scale(loss).backward()
    for master, p in zip(masters, model.parameters()):
        master.grad, p.grad = p.grad.float(), None
    scaler.step(optimizer)
    scaler.update()
    for master, p in zip(masters, model.parameters()):
        p.data.copy_(master.data)
