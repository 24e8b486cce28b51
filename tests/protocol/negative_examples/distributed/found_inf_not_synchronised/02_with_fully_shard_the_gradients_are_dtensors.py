# with fully_shard the gradients are DTensors, which reduce what is found

from torch.distributed.fsdp import fully_shard

model = Net()
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)
scaler = torch.amp.GradScaler("cuda")
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
