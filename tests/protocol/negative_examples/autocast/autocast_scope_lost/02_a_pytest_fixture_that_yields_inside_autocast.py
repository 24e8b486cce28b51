# a pytest fixture that yields inside autocast

import pytest


@pytest.fixture
def bf16_region():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield
