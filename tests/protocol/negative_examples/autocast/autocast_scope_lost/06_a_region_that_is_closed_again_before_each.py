# a region that is closed again before each yield

def predictions(model, loader):
    for inputs in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(inputs)
        yield output
