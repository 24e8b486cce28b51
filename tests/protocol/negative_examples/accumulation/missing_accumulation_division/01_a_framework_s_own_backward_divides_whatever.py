# a framework's own backward divides, whatever has computed the loss

def train(loader, optimizer, loss_of, k):
    accelerator = make_accelerator(k)
    for i, batch in enumerate(loader):
        loss = loss_of(batch)
        accelerator.backward(loss)
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
