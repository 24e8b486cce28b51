# a context made anew at every call of a factory

def amp_cm():
    return torch.autocast("cuda", dtype=torch.bfloat16)


def outer(x):
    with amp_cm():
        return inner(x)


def inner(x):
    with amp_cm():
        return linear(x)
