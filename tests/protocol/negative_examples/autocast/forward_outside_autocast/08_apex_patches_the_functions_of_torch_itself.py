# apex patches the functions of torch itself

from apex import amp

model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
