# the model returns the loss, computed inside

with torch.autocast("cuda", dtype=torch.float16):
    loss = model(input_ids, labels=labels).loss
scaler.scale(loss).backward()
