# in the older class init_scale does come first

from torch.cuda.amp import GradScaler

scaler = GradScaler(1024.0)
