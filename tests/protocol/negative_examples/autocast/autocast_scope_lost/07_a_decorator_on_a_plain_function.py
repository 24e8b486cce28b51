# a decorator on a plain function

@torch.autocast("cuda", dtype=torch.bfloat16)
@torch.no_grad()
def predict(model, inputs):
    return model(inputs)
