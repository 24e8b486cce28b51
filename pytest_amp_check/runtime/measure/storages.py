"""The storages that are alive while code runs, by category.

torch's own ``torch.distributed._tools.mem_tracker.MemTracker`` is not used for these reasons. With MemTracker, a model
that is called twice raises NotImplementedError in the user's forward pass. MemTracker counts temporaries of an
optimizer as optimizer state, and every result of a forward pass as an activation. MemTracker does not know the weight
cache of autocast.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as torch_modules
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from ..record.patches.table import never_compile
from .block import Block
from .kernel_memory import retained_bytes, transient_bytes
from .ledger import Ledger
from .noop_casts import watch_casts
from .step_recording import ModuleCall, StepRecording

#: Categories in the order of reports. "other": buffers, tensors of a scaler, and storages that outlive two steps.
CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    "inputs",
    "temporaries",
    "autocast cache",
    "workspace",
    "other",
)
#: CUDA's caching allocator hands out multiples of this many bytes (kMinBlockSize in CUDACachingAllocator).
CUDA_BLOCK = 512
#: Largest number of events kept for one phase. A longer phase is summed up in parts: temporaries of an earlier part
#: that are alive at the end of the part keep their guessed category.
MOST_EVENTS = 100_000

_aten = torch.ops.aten
_MATMULS = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.baddbmm.default,
    _aten.addmv.default,
    _aten.mv.default,
}
_graph_task = torch._C._current_graph_task_id
_PLAIN = {torch.Tensor, nn.Parameter, FakeTensor}
_LOW = (torch.float16, torch.bfloat16)

_ANY_CUDA = torch.device("cuda")

#: Namespaces of ops without tensors: markers of a profiler, and queries for properties of a tensor.
_WITHOUT_TENSORS = ("prim", "profiler")


def iter_storages(tensor: torch.Tensor) -> Iterable[torch.UntypedStorage]:
    """Return every storage that holds the values of a tensor; none for a layout without storages."""
    # Nearly all tensors have one of these classes, and the general check costs as much as an op.
    if type(tensor) in _PLAIN:
        try:
            return (tensor.untyped_storage(),)
        except (NotImplementedError, RuntimeError):
            pass
    return _storages_within(tensor)


def _storages_within(tensor: Any) -> Iterator[torch.UntypedStorage]:
    inner: Iterable[Any] = ()
    if is_lazy(tensor):
        return
    if is_traceable_wrapper_subclass(tensor):
        inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    elif tensor.layout is torch.sparse_coo:
        inner = tensor._indices(), tensor._values()
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        inner = tensor.crow_indices(), tensor.col_indices(), tensor.values()
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        inner = tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    elif tensor.layout is torch.strided and type(tensor) not in _PLAIN:
        with suppress(NotImplementedError, RuntimeError):
            yield tensor.untyped_storage()
    for each in tensors_in(inner):
        yield from iter_storages(each)


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among the arguments or results of an op, including nested lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def _autocast_depth() -> int:
    depth = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return int(depth) - 1


def _op_name(func: Any) -> str:
    """Return the name of an op as users know it. Higher-order ops have no overloads."""
    return str(getattr(func, "overloadpacket", func).__name__)


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that sees every op of one thread and tracks the live storages by category.

    The category of a storage becomes known after its creation. A storage is an activation if the forward pass created
    it and it is alive when the backward pass begins. A storage is a gradient if a parameter holds it when the backward
    pass ends. So allocations and frees are listed, and summed up at the ends of phases, when the categories are known.
    Peaks are exact with the final categories.

    ``device``: storages on other devices do not count. ``as_cuda``: sizes are rounded up to the blocks of the CUDA
    allocator, and numbers that CUDA training keeps on the host (the step count of an optimizer) do not count. ``fake``:
    fake tensors count.
    """

    # Without this flag, higher-order ops (flex attention) raise while any mode is active.
    supports_higher_order_operators = True

    def __init__(self, device: torch.device, *, as_cuda: bool, fake: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self._as_cuda = as_cuda
        self._adds_kernels = as_cuda and device.type != "cuda"
        self._fake = fake
        self._thread = threading.get_ident()
        self._is_paused = False
        self._blocks: dict[int, Block] = {}
        self._pending_blocks: dict[int, Block] = {}
        self._cache_blocks: dict[int, Block] = {}
        self._cast_weight_ids: set[int] = set()
        self.step_recording = StepRecording()
        self.ledger = Ledger(self.step_recording)
        self._module_names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._open_calls: list[tuple[int, str, ModuleCall]] = []
        # Weak references to the parameters themselves would prevent torch from swapping them in module.to().
        self._root_modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepping_names: list[str] = []
        self._in_backward = self._has_stepped = self._has_unscaled = False
        self._step_number = 0
        self._hook_handles: list[Any] = []
        self._has_hooks: Any = None
        self._stop_watching: Callable[[], None] = lambda: None
        self.matmul_in_forward = self.matmul_in_backward = False

    def start(self) -> None:
        """Start tracking in the current thread."""
        # When a compiled module is called, torch before 2.5 also compiles its hooks, and warns that it cannot.
        never_compile(self._enter_module)
        never_compile(self._leave_module)
        self._hook_handles = [
            register_module_forward_pre_hook(self._enter_module),
            # Without always_call a forward pass that raises would leave its entries in _open_calls.
            register_module_forward_hook(self._leave_module, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        # torch.compile warns about hooks that run twice for the compiled module; a second run does no harm here.
        self._has_hooks = getattr(torch_modules, "_has_any_global_hook", None)
        if self._has_hooks is not None:
            torch_modules._has_any_global_hook = lambda: False
        self._stop_watching = watch_casts(self._record_noop_cast)
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Stop tracking, and sum up the remaining events."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._stop_watching()
        for handle in self._hook_handles:
            handle.remove()
        if self._has_hooks is not None:
            torch_modules._has_any_global_hook = self._has_hooks
        if self._in_backward:
            self._leave_backward()
        self._sum_up_phase("end")
        # Once the blocks are dropped, the weak references to storages make no more callbacks.
        self._blocks.clear()
        self._pending_blocks.clear()
        self._cache_blocks.clear()

    # Named objects.

    def include_module(self, module: nn.Module) -> None:
        """Register a model. Its parameters, gradients and buffers count as allocated before the start."""
        for name, inner in module.named_modules():
            self._module_names[inner] = name or type(module).__name__
            self._root_modules.discard(inner)
        self._root_modules.add(module)
        for name, parameter in module.named_parameters():
            self.assign_category(parameter, "parameters", name)
            if parameter.is_leaf and parameter.grad is not None:
                self.assign_category(parameter.grad, "gradients", name)
        for name, buffer in module.named_buffers():
            self.assign_category(buffer, "other", name)

    def include_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Register an optimizer with parameters, gradients and state."""
        self._optimizers.add(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._include_parameter(parameter)
                if parameter.is_leaf and parameter.grad is not None:
                    self.assign_category(parameter.grad, "gradients", name)
        name = type(optimizer).__name__
        for state in optimizer.state.values():
            if isinstance(state, dict):
                for key, value in state.items():
                    for tensor in tensors_in([value]):
                        self.assign_category(tensor, "optimizer state", f"{name}: {key}")

    def _include_parameter(self, parameter: torch.Tensor) -> str:
        """Register a tensor as a parameter, and return its name."""
        name = f"parameter of shape {tuple(parameter.shape)}"
        for storage in iter_storages(parameter):
            block = self._blocks.get(storage._cdata)
            if block is not None and block.category == "parameters":
                return block.name
            self.assign_category(parameter, "parameters", name)
        return name

    def assign_category(self, tensor: torch.Tensor, category: str, name: str) -> None:
        """Set the category and name of a tensor. An unseen tensor counts as allocated before the start."""
        was_paused, self._is_paused = self._is_paused, True
        try:
            for storage in iter_storages(tensor):
                key = storage._cdata
                block = self._blocks.get(key)
                if block is None:
                    block = self._add_block(tensor, storage, category, name)
                    if block is not None:
                        block.is_summed_up = True
                        self.ledger.add_preexisting(block)
                else:
                    self.ledger.relabel(block, category, name)
                    self._pending_blocks.pop(key, None)
        finally:
            self._is_paused = was_paused

    # Allocations, frees and resizes.

    def _add_block(self, tensor: torch.Tensor, storage: torch.UntypedStorage, category: str, name: str) -> Block | None:
        if isinstance(tensor, FakeTensor):
            device = tensor.fake_device if self._fake else None
        else:
            # The device of the storage is used: under device emulation a tensor reports the emulated device. Beside
            # fake tensors a real number is a constant, and a real tensor is a batch.
            device = None if self._fake and not tensor.dim() else storage.device
        if device is None or device.type != self.device.type:
            return None
        if self.device == _ANY_CUDA:
            # The first used CUDA device is tracked: the code that selects a device, as each rank does, may run later.
            self.device = device
        if device.index != self.device.index:
            return None
        block = Block(self._counted_size(storage), category, name, self._step_number)
        key = storage._cdata
        block.reference = weakref.ref(storage, partial(self._remove_block, key))
        self._blocks[key] = block
        return block

    def _counted_size(self, storage: torch.UntypedStorage) -> int:
        return self._round_up(storage.nbytes())

    def _round_up(self, size: int) -> int:
        return -(-size // CUDA_BLOCK) * CUDA_BLOCK if self._as_cuda else size

    def _remove_block(self, key: int, _: object) -> None:
        block = self._blocks.pop(key, None)
        if block is None:
            return
        self._cache_blocks.pop(key, None)
        if self._pending_blocks.pop(key, None) is not None and not block.is_summed_up:
            block.category = "temporaries"
        self.ledger.record_free(block)

    # Phases.

    def _enter_backward(self) -> None:
        self._in_backward = True
        self._stepping_names.clear()
        if self._has_stepped:
            self._has_stepped = False
            self._step_number += 1
            # Two steps, not one: the graph of a second model may be built before the first model's step.
            for block in self._blocks.values():
                if block.category == "activations" and block.step_number < self._step_number - 2:
                    self.ledger.relabel(block, "other", block.name)
        if not torch.is_grad_enabled():
            self._confirm_pending()
        self._sum_up_phase("forward")
        # The callback gives an exact end even if nothing runs between the end of backward and the removal of gradients.
        torch.autograd.Variable._execution_engine.queue_callback(self._leave_backward)

    def _leave_backward(self) -> None:
        if not self._in_backward:
            return
        self._in_backward = False
        self._claim_gradients()
        self._sum_up_phase("backward")

    def _claim_gradients(self) -> None:
        for module in list(self._root_modules):
            for name, parameter in module.named_parameters():
                if parameter.is_leaf and parameter.grad is not None:
                    self.assign_category(parameter.grad, "gradients", name)
        for optimizer in list(self._optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.is_leaf and parameter.grad is not None:
                        self.assign_category(parameter.grad, "gradients", self._include_parameter(parameter))

    def _confirm_pending(self) -> None:
        """Mark the pending blocks as activations.

        They are alive when the backward pass reads the results of the forward pass.
        """
        for block in self._pending_blocks.values():
            block.step_number = self._step_number
            # The end of an earlier phase may have classified the block as a temporary.
            if block.category == "temporaries":
                self.ledger.relabel(block, "activations", block.name)
        self._pending_blocks.clear()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        for block in self._pending_blocks.values():
            if not block.is_summed_up and block.category == "inputs":
                block.category = "temporaries"
        self._sum_up_phase("unscale" if self._has_unscaled else None)
        self._has_unscaled = False
        self.include_optimizer(optimizer)
        self._stepping_names.append(type(optimizer).__name__)
        self.step_recording.begin_step(optimizer)

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._has_stepped = True
        if self._stepping_names:
            self._stepping_names.pop()
        self.include_optimizer(optimizer)
        self._sum_up_phase("step")
        if not self._stepping_names:
            self.step_recording.finish_step(optimizer, self._blocks.values())

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        if not self._open_calls and module not in self._module_names:
            self.include_module(module)
        name = self._module_names.get(module) or type(module).__name__
        first = next(tensors_in(args), None)
        call = self.step_recording.enter_module(
            name, self._blocks_of(args), () if first is None else tuple(first.shape)
        )
        self._open_calls.append((id(module), name, call))

    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        key = id(module)
        for depth in range(len(self._open_calls) - 1, -1, -1):
            if self._open_calls[depth][0] == key:
                self.step_recording.leave_module(self._open_calls[depth][2], self._blocks_of([output]))
                del self._open_calls[depth:]
                return

    # Operators.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # A parameter of a lazy module has neither shape nor values until the op that makes it a parameter.
        if self._is_paused or func.namespace in _WITHOUT_TENSORS or (args and is_lazy(args[0])):
            return func(*args, **kwargs)
        grad_enabled = torch.is_grad_enabled()
        if _graph_task() != -1:
            if not self._in_backward:
                self._enter_backward()
            elif self._pending_blocks and not grad_enabled:
                self._confirm_pending()
        elif self._in_backward:
            self._leave_backward()
        if self._cast_weight_ids and _autocast_depth() == 0:
            self._close_cache()
        needs_grad = False
        if func is not _aten.lift_fresh.default:
            for tensor in tensors_in(args):
                needs_grad = needs_grad or tensor.requires_grad
                self._record_argument(tensor)
        if func in _MATMULS:
            if self._in_backward:
                self.matmul_in_backward = True
            else:
                self.matmul_in_forward = True
        elif func is _aten._amp_foreach_non_finite_check_and_unscale_.default:
            self._has_unscaled = True
        elif func is _aten._amp_update_scale_.default:
            self.assign_category(args[0], "other", "GradScaler: scale")
            self.assign_category(args[1], "other", "GradScaler: growth tracker")
        op = self.step_recording.begin_op(
            func, backward=self._in_backward, grad=grad_enabled, makes_node=needs_grad and grad_enabled
        )
        if torch.Tag.inplace_view in func.tags:
            self.step_recording.keep_arguments(op, args, self._block_of)
        result = func(*args, **kwargs)
        if func is _aten._to_copy.default and self._is_cached_cast(args[0], result):
            self._record_cached_cast(args[0], result)
        else:
            least_size = self._round_up(retained_bytes(func, args)) if self._adds_kernels else 0
            self._record_results(result, func, needs_grad=needs_grad and grad_enabled, least_size=least_size)
        if self._adds_kernels:
            self._record_kernels(func, args, result)
        self.step_recording.end_op(op, args, kwargs, result, self._block_of)
        if len(self.ledger) > MOST_EVENTS:
            self._sum_up_phase(None)
        return result

    def _record_noop_cast(self, tensor: torch.Tensor) -> None:
        if not self._in_backward and self._block_of(tensor) is not None:
            self.step_recording.record_noop_cast(tensor)

    def _block_of(self, tensor: torch.Tensor) -> Block | None:
        """Return the block of a tensor, or None.

        For a tensor with several storages return the block of the first storage.
        """
        return next((self._blocks.get(storage._cdata) for storage in iter_storages(tensor)), None)

    def _blocks_of(self, values: Iterable[Any]) -> list[Block]:
        """Return the blocks of the tensors among the arguments or results of a module."""
        blocks = (self._block_of(tensor) for tensor in tensors_in(values))
        return [block for block in blocks if block is not None]

    def _guess_category(self, func: Any, *, needs_grad: bool) -> tuple[str, str, bool]:
        """Return category and name of a new result of an op, and True if the category may change later."""
        if self._in_backward and not torch.is_grad_enabled():
            return "temporaries", f"backward ({_op_name(func)})", False
        if self._stepping_names and not torch.is_grad_enabled():
            return "temporaries", f"{self._stepping_names[-1]}.step ({_op_name(func)})", False
        if self._open_calls:
            return "activations", self._open_calls[-1][1], True
        # Outside of every module and computed from no parameter: a batch, a target or a mask.
        is_kept = needs_grad or self._in_backward
        name = f"{_op_name(func)} outside every module"
        return ("activations" if is_kept else "inputs"), name, True

    def _record_argument(self, tensor: torch.Tensor) -> None:
        for storage in iter_storages(tensor):
            block = self._blocks.get(storage._cdata)
            if block is None:
                if isinstance(tensor, nn.Parameter):
                    self._include_parameter(tensor)
                    continue
                category = "activations" if self._in_backward else "inputs"
                block = self._add_block(tensor, storage, category, f"tensor of shape {tuple(tensor.shape)}")
                if block is not None:
                    self.ledger.record_allocation(block)
            elif (
                tensor.requires_grad
                and block.category != "parameters"
                and tensor.is_leaf
                and isinstance(tensor, nn.Parameter)
            ):
                self._include_parameter(tensor)

    def _record_results(self, result: Any, func: Any, *, needs_grad: bool, least_size: int) -> None:
        guess = None
        for tensor in tensors_in([result]):
            for storage in iter_storages(tensor):
                key = storage._cdata
                block = self._blocks.get(key)
                if block is None:
                    category, name, pending = guess = guess or self._guess_category(func, needs_grad=needs_grad)
                    block = self._add_block(tensor, storage, category, name)
                    if block is None:
                        continue
                    if self._as_cuda and self._stepping_names and func is _aten.lift_fresh.default:
                        block.size = 0
                    block.least_size = least_size
                    block.size = max(block.size, least_size)
                    if pending:
                        self._pending_blocks[key] = block
                    self.ledger.record_allocation(block)
                elif block.size and (size := max(block.least_size, self._counted_size(storage))) != block.size:
                    self.ledger.record_resize(block, size)

    def _record_kernels(self, func: Any, args: Any, result: Any) -> None:
        """Record the memory that CUDA's kernels of an op allocate beside its result."""
        if transient := transient_bytes(func, args, result):
            scratch = Block(self._round_up(transient), "workspace", _op_name(func), self._step_number)
            self.ledger.record_final_allocation(scratch)
            self.ledger.record_free(scratch)

    # autocast's cache of low-precision weights.

    def _is_cached_cast(self, source: torch.Tensor, result: Any) -> bool:
        """Return True if autocast caches a cast.

        The conditions are the conditions of ``cached_cast`` in ATen/autocast_mode.cpp.
        """
        return (
            isinstance(result, torch.Tensor)
            and result.dtype in _LOW
            and source.dtype is torch.float32
            and source.requires_grad
            and source.is_leaf
            and id(source) not in self._cast_weight_ids
            and not source._is_view()
            and torch.is_autocast_cache_enabled()
            and _autocast_depth() > 0
        )

    def _record_cached_cast(self, source: torch.Tensor, result: torch.Tensor) -> None:
        self._cast_weight_ids.add(id(source))
        source_blocks = [self._blocks.get(storage._cdata) for storage in iter_storages(source)]
        name = next(
            (block.name for block in source_blocks if block is not None), f"tensor of shape {tuple(source.shape)}"
        )
        for storage in iter_storages(result):
            key = storage._cdata
            if key not in self._blocks:
                block = self._add_block(result, storage, "autocast cache", name)
                if block is not None:
                    self._cache_blocks[key] = block
                    self.ledger.record_final_allocation(block)

    def _close_cache(self) -> None:
        """Reclassify the cached casts as activations: after the outermost region only the backward pass keeps them."""
        for block in self._cache_blocks.values():
            self.ledger.relabel(block, "activations", f"{block.name} in low precision")
            block.step_number = self._step_number
            self.step_recording.record_uncached(block)
        self._cache_blocks.clear()
        self._cast_weight_ids.clear()

    def _sum_up_phase(self, label: str | None) -> None:
        if self._cast_weight_ids and _autocast_depth() == 0:
            self._close_cache()
        self.ledger.sum_up_phase(label)

    def alive(self) -> dict[str, int]:
        """Return the bytes of the live storages by category. Categories are as far as known now."""
        sums: dict[str, int] = {}
        for block in self._blocks.values():
            sums[block.category] = sums.get(block.category, 0) + block.size
        return sums
