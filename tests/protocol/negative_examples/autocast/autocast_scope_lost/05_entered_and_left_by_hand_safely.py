# entered and left by hand, safely

def predict(model, inputs):
    region = torch.autocast("cuda", dtype=torch.float16)
    region.__enter__()
    try:
        return model(inputs)
    finally:
        region.__exit__(None, None, None)
