# the caller enters autocast

scaler = torch.amp.GradScaler("cuda")


def forward(model, batch):
    return model(batch["inputs"], batch["targets"])


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = forward(model, batch)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
