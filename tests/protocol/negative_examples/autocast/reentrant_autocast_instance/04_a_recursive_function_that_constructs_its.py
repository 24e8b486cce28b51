# a recursive function that constructs its autocast in the body

def descend(node, x):
    with torch.autocast("cuda", dtype=torch.float16):
        x = node.linear(x)
        return x if node.child is None else descend(node.child, x)
