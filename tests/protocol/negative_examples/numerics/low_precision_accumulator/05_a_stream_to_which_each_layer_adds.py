# a stream to which each layer adds

layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
for inputs in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        stream = layers[0](inputs)
    for layer in layers:
        with torch.autocast("cuda", dtype=torch.float16):
            found = layer(stream)
        stream = stream + found
        stream.add_(found)
