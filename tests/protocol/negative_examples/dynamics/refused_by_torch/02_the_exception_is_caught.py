# the program catches the exception and goes on

import torch

a = torch.randn(4, 4, dtype=torch.float16)
try:
    product = torch.mm(a, torch.randn(4, 4))
except RuntimeError:
    product = torch.mm(a.float(), torch.randn(4, 4))
print(product.dtype)
