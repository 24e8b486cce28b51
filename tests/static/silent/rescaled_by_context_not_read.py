"""The loss is divided by the number of micro-batches, and then given to a context that nobody can read."""

import torch
from elsewhere import make_criterion, make_loader, make_model, scaled_for

model = make_model()
criterion = make_criterion()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, steps):
    batches = iter(loader)
    while True:
        optimizer.zero_grad()
        for i in range(steps):
            x, y = next(batches)
            loss = criterion(model(x), y)
            loss /= steps
            if hasattr(optimizer, "_amp_stash"):
                later = (i + 1) % steps != 0
                with torch.cuda.amp.scale_loss(loss, optimizer, delay_unscale=later) as scaled_loss:
                    scaled_loss.backward()
            elif steps > 8:
                with scaled_for(loss, optimizer) as scaled_loss:
                    scaled_loss.backward()
            else:
                loss.backward()
        optimizer.step()


train(make_loader(), 4)
