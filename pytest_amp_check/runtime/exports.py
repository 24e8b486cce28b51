"""Exports of a run for other programs: JSON, pandas, TensorBoard, Weights & Biases."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: Curves of TensorBoard and Weights & Biases: key of a row to the name of the curve.
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
    """Return plain data as strict JSON. Non-finite numbers become the strings NaN, Infinity and -Infinity."""
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
    """Return a pandas.DataFrame with one row for each step, indexed by "index". Raise ImportError without pandas."""
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
    """Write the curves of a run to a folder or to an existing ``SummaryWriter``.

    Raise ImportError without tensorboard.
    """
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
    """Log the curves of a run to a Weights & Biases run. None stands for the active run.

    Raise ImportError without wandb, and ValueError if no run is active.
    """
    if target is None:
        try:
            import wandb
        except ModuleNotFoundError:
            raise ImportError("to_wandb() needs wandb: pip install wandb") from None
        target = wandb.run
        if target is None:
            raise ValueError("no run of Weights & Biases is active: call wandb.init(), or give to_wandb() a run")
    for row in rows:
        # The program may log steps of its own to wandb, so the step of a row is a figure and not the step of wandb.
        target.log({**dict(_row_scalars(row)), "amp/step": row["index"]})
