# a noqa of another tool

from torch.amp import GradScaler, autocast  # noqa: F401
