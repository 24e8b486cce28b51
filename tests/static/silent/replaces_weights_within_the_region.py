# No AMP101: with assign=True the module is given other parameters, of which the region holds no copies.
import torch


def train(experts, criterion, scaler, loader):
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, (inputs, targets) in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            preview = model(inputs)
            model.load_state_dict(experts[step % 2], strict=True, assign=True)
            loss = criterion(model(inputs), targets) + preview.detach().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
