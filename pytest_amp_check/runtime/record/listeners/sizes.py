"""Matrix products in low precision with sizes that Tensor Cores handle less efficiently."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ....protocol import events as e
from ....protocol import sizes
from ....protocol.sites import Site
from ..forwards import is_product, output_dtypes
from ..graph import FAR, iter_nodes
from ..recording import Recording
from ..regions import LOW
from ..source.call_texts import SiteText
from .listener import Listener, listener_method

#: Nodes between a weight and its product: casts and changes of shape; and their largest number.
_CASTS = ("ToCopy", "TBackward", "Transpose", "Permute", "View", "UnsafeView")
BETWEEN = 6
#: Attributes of product nodes with the shape of the factor that is multiplied with a weight.
_ROWS = ("_saved_mat1_sym_sizes", "_saved_self_sym_sizes")


class SizeListener(Listener):
    """A listener for new layers that checks the products of the first backward pass at each location."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: ``id`` of a layer's weight to a reference and the location of the layer's creation.
        self._weight_sites: dict[int, tuple[weakref.ref[Any], Site]] = {}
        self._reported_sites: set[Site] = set()

    @listener_method
    def record_weight(self, module: nn.Module, param: torch.Tensor) -> None:
        """Record a new weight of a layer with relevant sizes."""
        if getattr(module, "groups", 1) == 1 and isinstance(module, (nn.Linear, nn.Embedding, nn.modules.conv._ConvNd)):
            self._weight_sites[id(param)] = weakref.ref(param), self.sites.current_site()

    def check_products(self, roots: Sequence[torch.Tensor], site: Site) -> None:
        """Report odd products behind a backward pass: layers at their creation, batches at the backward pass."""
        rows: list[int] = []
        for node in iter_nodes(roots, FAR):
            if not is_product(node) or LOW.keys().isdisjoint(output_dtypes(node)):
                continue
            for weight in _product_weights(node):
                if sizes.find_odd_sides(weight.shape[:2]):
                    self._report_layer(weight)
                rows += _odd_rows(node, weight)
        if rows and site not in self._reported_sites:
            self._reported_sites.add(site)
            names = {"call": SiteText(site), **sizes.describe_sizes(rows[:1])}
            self.recording.run_checker.add_event(e.OddSize(site, how="rows", names=names))

    def _report_layer(self, weight: torch.Tensor) -> None:
        weight_ref, site = self._weight_sites.get(id(weight), (None, None))
        if weight_ref is None or site is None or weight_ref() is not weight or site in self._reported_sites:
            return
        self._reported_sites.add(site)
        names = {"call": SiteText(site), **sizes.describe_sizes(sizes.find_odd_sides(sorted(weight.shape[:2])))}
        self.recording.run_checker.add_event(e.OddSize(site, how="weight", names=names))


def _product_weights(product: Any) -> Iterator[torch.Tensor]:
    """Yield the matrices that a product takes from parameters."""
    for input_edge in product.next_functions:
        node: Any = input_edge[0]
        for _ in range(BETWEEN):
            variable = getattr(node, "variable", None)
            if variable is not None and variable.dim() > 1:
                yield variable
            if node is None or not type(node).__name__.startswith(_CASTS):
                break
            node = node.next_functions[0][0]


def _odd_rows(product: Any, weight: torch.Tensor) -> list[int]:
    """Return the number of rows that a product multiplies with a weight if only that number is odd, else []."""
    shape: Sequence[int] = next(filter(None, (getattr(product, name, None) for name in _ROWS)), ())
    if len(shape) != 2 or weight.dim() != 2 or sizes.find_odd_sides(weight.shape):
        return []
    return sizes.find_odd_sides((int(shape[0]), *weight.shape))
