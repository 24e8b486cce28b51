# dtype as the second positional argument

with torch.autocast("cuda", torch.float16, use_amp):
    output = model(inputs)
