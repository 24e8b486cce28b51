# a context manager that yields inside autocast is how one writes such a helper

import contextlib


@contextlib.contextmanager
def mixed_precision(enabled):
    with torch.autocast("cuda", dtype=torch.float16, enabled=enabled):
        yield
