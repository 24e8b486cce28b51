# a fallback for old versions of torch

try:
    from torch.amp import GradScaler
except ImportError:
    from torch.cuda.amp import GradScaler

scaler = GradScaler()
