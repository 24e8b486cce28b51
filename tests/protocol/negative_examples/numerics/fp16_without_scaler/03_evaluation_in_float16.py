# evaluation in float16

@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    with torch.autocast("cuda", dtype=torch.float16):
        return [model(inputs) for inputs in loader]
