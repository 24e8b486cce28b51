# a file that mentions no AMP at all

def add(a, b, /, *, c=0):
    return a + b + c
