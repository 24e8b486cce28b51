# float32 on CUDA forces a float32 island

def route(router, tokens):
    with torch.autocast("cuda", dtype=torch.float32):
        return router(tokens).softmax(dim=-1)
