# the new entry points

scaler = torch.amp.GradScaler("cuda", 1024.0)
with torch.amp.autocast("cuda", dtype=torch.float16, enabled=use_amp):
    dtype = torch.get_autocast_dtype("cuda")
