# a factory that returns the context

def amp_cm(enabled):
    return torch.autocast("cuda", dtype=torch.bfloat16) if enabled else contextlib.nullcontext()
