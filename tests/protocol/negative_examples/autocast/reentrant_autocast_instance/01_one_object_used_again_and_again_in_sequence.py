# one object, used again and again in sequence

ctx = torch.autocast(device_type="cuda", dtype=torch.bfloat16)


@torch.no_grad()
def estimate_loss(model, batches):
    losses = []
    for x, y in batches:
        with ctx:
            logits, loss = model(x, y)
        losses.append(loss.item())
    return losses


for step in range(max_iters):
    if step % eval_interval == 0:
        print(estimate_loss(model, valid))
    with ctx:
        logits, loss = model(x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
