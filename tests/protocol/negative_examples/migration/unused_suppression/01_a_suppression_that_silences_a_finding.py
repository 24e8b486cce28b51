# a suppression that silences a finding

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), 1.0)  # amp: ignore[AMP201] the threshold was tuned like this
    scaler.step(optimizer)
    scaler.update()
