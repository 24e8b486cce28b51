# a frozen base, some of whose layers are replaced by adapted ones: those that want gradients are trained

base = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 8), nn.Linear(8, 16)).to(torch.float16)
for p in base.parameters():
    p.requires_grad_(False)
base[1] = LoRA(base[1])
optimizer = torch.optim.AdamW([p for p in base.parameters() if p.requires_grad], lr=1e-4)
scaler = torch.amp.GradScaler("cuda")
for ids in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(base(ids).flatten(0, 1), ids.flatten())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
