"""What a run knows, for other programs: JSON, pandas, TensorBoard, Weights & Biases."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: What is drawn of each step, as it is called there, by its name in a row.
CURVES = {
    "scale_after": "amp/scale",
    "skipped": "amp/skipped",
    "underflow": "amp/underflow",
    "memory": "amp/memory",
    "loss": "amp/loss",
    "grad_norm": "amp/grad_norm",
}
Row = dict[str, Any]


def as_json(data: Any) -> str:
    """Plain data as JSON that every program can read: numbers that are not finite are the strings NaN and Infinity."""
    return json.dumps(_replace_nonfinite(data), indent=2, allow_nan=False) + "\n"


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _replace_nonfinite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_nonfinite(each) for each in value]
    return value


def as_dataframe(rows: Sequence[Row]) -> Any:
    """A pandas.DataFrame with a row for each step."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise ImportError("to_pandas() needs pandas: pip install pandas") from None
    return pd.DataFrame.from_records(list(rows), index="index")


def _row_scalars(row: Row) -> Iterator[tuple[str, float]]:
    for name, curve in CURVES.items():
        if row.get(name) is not None:
            yield curve, float(row[name])


def write_tensorboard(rows: Sequence[Row], target: Any) -> None:
    """Write the curves of a run, into a folder or by a ``SummaryWriter`` that is there already."""
    owns_writer = isinstance(target, (str, os.PathLike))
    writer = target
    if owns_writer:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise ImportError("to_tensorboard() needs tensorboard: pip install tensorboard") from None
        writer = SummaryWriter(os.fspath(target))
    try:
        for row in rows:
            for curve, value in _row_scalars(row):
                writer.add_scalar(curve, value, row["index"])
    finally:
        if owns_writer:
            writer.close()


def write_wandb(rows: Sequence[Row], target: Any) -> None:
    """Log the curves of a run to a run of Weights & Biases, that which is active where none is given."""
    if target is None:
        try:
            import wandb
        except ModuleNotFoundError:
            raise ImportError("to_wandb() needs wandb: pip install wandb") from None
        target = wandb.run
        if target is None:
            raise ValueError("no run of Weights & Biases is active: call wandb.init(), or give to_wandb() a run")
    for row in rows:
        # The program may log steps of its own, so that theirs is a figure beside ours and not the step itself.
        target.log({**dict(_row_scalars(row)), "amp/step": row["index"]})
