# unusual but valid: an encoding declaration, a form feed, a semicolon

# -*- coding: utf-8 -*-
import torch; scaler = torch.amp.GradScaler('cuda')

print(scaler)
