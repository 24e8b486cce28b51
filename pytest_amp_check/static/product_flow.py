"""Flow of matrix products of data to uses that need their digits, within one function.

Autocast multiplies matrices in low precision, whatever the dtype of the operands. A product of data (arguments, entries
of a batch, and what is computed from them) then has the last digits of float16 or bfloat16. Products of what layers
compute are left out: networks are trained with such digits.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable

from ..protocol.fast_namedtuple import NamedTuple
from ..protocol.source_text import find_access_path
from .interpreter.dtypes import is_shape_op, is_tensor_op
from .project.assignments import assigned_pairs
from .project.module import Function, Module
from .project.region_entry import disables_autocast
from .project.syntax import is_same_syntax, root_name, tail_name, walk

#: Packages whose functions return no tensors.
ARRAY_PACKAGES = frozenset(("numpy", "scipy", "cv2", "math", "jax"))
#: Functions and methods that autocast runs in low precision -> position of the first operand of the product. The
#: receiver of a method is at position 0.
_PRODUCTS = {
    **dict.fromkeys(("matmul", "bmm", "mm", "mv", "einsum", "chain_matmul", "multi_dot"), 0),
    **dict.fromkeys(("baddbmm", "addmm", "addbmm", "addmv"), 1),
}
#: Ops of networks. Their results are activations, no data.
_ACTIVATIONS = frozenset(
    "softmax log_softmax sigmoid relu relu6 leaky_relu elu gelu silu mish softplus dropout linear embedding layer_norm "
    "group_norm batch_norm instance_norm rms_norm conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
    "conv_transpose3d max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d "
    "scaled_dot_product_attention multi_head_attention_forward gumbel_softmax prelu glu logsigmoid cross_entropy "
    "pixel_shuffle".split()
)
#: Ops whose derivative is infinite or large where their argument is near the end of its range, or whose result has
#: another direction after a small error of two arguments.
_ANGLES = frozenset("acos arccos asin arcsin atan2 arctan2".split())
#: Ops that make coordinates whole numbers.
_ROUNDINGS = frozenset("floor round ceil trunc".split())
#: Decompositions and inverses, whose error grows with the condition of the matrix.
_INVERSES = frozenset(
    "inverse inv pinverse pinv solve lstsq cholesky svd eigh eig eigvalsh svdvals det logdet slogdet qr".split()
)
_NORMS = frozenset(("norm", "vector_norm"))
_REDUCTIONS = frozenset("norm vector_norm sum mean max min amax amin prod std var logsumexp".split())
_SQUARES = frozenset(("square", "pow"))
#: Functions of the distances between points of two lists.
_DISTANCES = frozenset(("cdist", "pairwise_distance"))
#: Results that are no longer the numbers of the tensor, but a count, a place or a truth.
_PLACES = frozenset(
    "len item tolist size dim numel argmax argmin argsort nonzero shape dtype device ndim isnan isfinite isinf any all "
    "eq ne lt le gt ge logical_and logical_or zeros_like ones_like rand_like randn_like empty_like full_like new_zeros "
    "new_ones new_tensor new_empty new_full numpy".split()
)
#: Parts of a product that a later division uses: the ops keep that a tensor is such a part.
_KEEPING_PARTS = frozenset(
    "abs clamp clamp_min clamp_max clip float to type type_as unsqueeze squeeze expand expand_as contiguous detach "
    "clone view reshape repeat maximum nan_to_num".split()
)
_TRANSPOSITIONS = frozenset("T mT H mH t transpose permute swapaxes adjoint".split())
#: Further methods of tensors and dictionaries, beside the ops with a dtype of their own.
_METHODS = frozenset(
    "double half bfloat16 bool byte long int short cumsum cumprod index_add index_add_ index_put index_put_ scatter "
    "scatter_ scatter_add scatter_add_ scatter_reduce index_fill masked_fill copy_ fill_ zero_ requires_grad_ sin cos "
    "tan atan sinh cosh tensor_split square get pop append items keys values".split()
)
_VIEWS = frozenset("float contiguous detach clone unsqueeze squeeze".split())
#: Chained products, from which on every one of them adds its rounding. Two are an attention or a pair of projections.
_CHAIN = 3


class _Flow(NamedTuple):
    """What is known of a value.

    products       low-precision products of data that the value is computed from
    is_layer       a layer computed the value, or a part of the value
    is_wide        float64, which autocast does not cast
    is_cast        cast to float32, so that an op which has no kernel for low precision runs
    is_array       a NumPy array or a number, which autocast does not cast
    terms          those of the products that are terms of the value, not factors
    is_part        some columns or rows of a product
    is_reduced     a length, a sum or another number of a product, no part of it
    is_difference  a difference of tensors, or a sum with such a difference
    is_square      a square of such a difference
    chain          number of products that one expression multiplies with each other
    """

    products: frozenset[ast.expr] = frozenset()
    is_layer: bool = False
    is_wide: bool = False
    is_cast: bool = False
    is_array: bool = False
    terms: frozenset[ast.expr] = frozenset()
    is_part: bool = False
    is_reduced: bool = False
    is_difference: bool = False
    is_square: bool = False
    chain: int = 0


_NOTHING = _Flow()
_LAYER = _Flow(is_layer=True)
_ARRAY = _Flow(is_array=True)


def _join(flows: Iterable[_Flow]) -> _Flow:
    """Return what is known of a value that is computed from several values, without the traits of a single one."""
    products: frozenset[ast.expr] = frozenset()
    terms: frozenset[ast.expr] = frozenset()
    is_layer = is_wide = is_cast = is_array = False
    chain = 0
    for flow in flows:
        products |= flow.products
        terms |= flow.terms
        is_cast = is_cast or flow.is_cast
        is_layer, is_wide, is_array = is_layer or flow.is_layer, is_wide or flow.is_wide, is_array or flow.is_array
        chain = max(chain, flow.chain)
    if is_layer:
        return _LAYER
    return _Flow(products, is_wide=is_wide, is_cast=is_cast, is_array=is_array, terms=terms, chain=chain)


class ProductUse(NamedTuple):
    """A low-precision product of data, and the expression that needs its digits."""

    product: ast.expr
    use: ast.expr


class ProductFlow:
    """Flow of products in one function, in the order of the statements."""

    def __init__(
        self, function: Function, layer_functions: Collection[Function], layer_parameters: Collection[str] = ()
    ) -> None:
        """``layer_functions`` are the functions of the file that run layers.

        ``layer_parameters`` are the parameters that a caller gives what a layer computes.
        """
        self.module = function.module
        self.function = function
        self._layer_functions = layer_functions
        #: Arguments of the calls in the function, by the last name of the callee, for those that layers compute.
        self.layer_arguments: dict[str, set[int | str]] = {}
        self.uses: dict[ast.expr, ast.expr] = {}
        self._flows: dict[str, _Flow] = dict.fromkeys(layer_parameters, _LAYER)
        self._aliases: dict[str, ast.expr] = {}
        self._square_matrices: set[ast.expr] = set()
        self._is_disabled = False
        self._loop_depth = 0

    def find_uses(self) -> list[ProductUse]:
        """Return the products of the function that reach a use which needs their digits."""
        if not any(map(disables_autocast, self.function.decorators)):
            self._execute(self.function.body)
        return [ProductUse(product, use) for product, use in self.uses.items()]

    def _execute(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._execute_statement(statement)

    def _execute_statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return
            case ast.Assign() | ast.AnnAssign():
                flows: dict[ast.expr, _Flow] = {}
                for target, value in assigned_pairs(statement):
                    if value not in flows:
                        flows[value] = self._evaluate(value)
                    self._assign(target, flows[value])
                    if isinstance(target, ast.Name):
                        self._aliases[target.id] = _strip_views(value)
            case ast.AugAssign(target=target, op=op, value=value):
                self._assign(target, self._apply_operator(op, target, value))
            case ast.If(test=test, body=body, orelse=orelse):
                self._evaluate(test)
                before = dict(self._flows)
                self._execute(body)
                after, self._flows = self._flows, before
                self._execute(orelse)
                for path, flow in after.items():
                    other = self._flows.get(path, _NOTHING)
                    self._flows[path] = flow if flow == other else _join((flow, other))
            case (
                ast.For(target=target, iter=iterated, body=body, orelse=orelse)
                | ast.AsyncFor(target=target, iter=iterated, body=body, orelse=orelse)
            ):
                self._assign(target, self._evaluate(iterated))
                self._execute_loop(body)
                self._execute(orelse)
            case ast.While(test=test, body=body, orelse=orelse):
                self._evaluate(test)
                self._execute_loop(body)
                self._execute(orelse)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                outer = self._is_disabled
                for item in items:
                    if disables_autocast(item.context_expr):
                        self._is_disabled = True
                    elif "autocast" in tail_name(getattr(item.context_expr, "func", item.context_expr)):
                        self._is_disabled = False
                self._execute(body)
                self._is_disabled = outer
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                for block in (body, *(handler.body for handler in handlers), orelse, final):
                    self._execute(block)
            case ast.Return(value=ast.expr() as value) | ast.Expr(value=value):
                self._evaluate(value)
            case _:
                for node in ast.iter_child_nodes(statement):
                    if isinstance(node, ast.expr):
                        self._evaluate(node)

    def _execute_loop(self, body: list[ast.stmt]) -> None:
        self._loop_depth += 1
        self._execute(body)
        self._loop_depth -= 1

    def _assign(self, target: ast.expr, flow: _Flow) -> None:
        match target:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    inner = part.value if isinstance(part, ast.Starred) else part
                    self._assign(inner, flow._replace(is_part=bool(flow.products)))
            case ast.Subscript(value=holder) if find_access_path(target) is None:
                path = find_access_path(holder)
                if path is not None and (flow.products or flow.is_layer):
                    self._flows[path] = _join((self._flows.get(path, _NOTHING), flow))
            case _:
                path = find_access_path(target)
                if path is not None:
                    # A recurrence multiplies what the variable holds, and is no single product of many matrices.
                    self._flows[path] = flow._replace(chain=0)

    def _evaluate(self, node: ast.expr) -> _Flow:
        match node:
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self._evaluate_access(node)
            case ast.BinOp(left=left, op=op, right=right):
                return self._apply_operator(op, left, right, node)
            case ast.UnaryOp(op=op, operand=operand):
                flow = self._evaluate(operand)
                return _NOTHING if isinstance(op, ast.Not) else flow
            case ast.Call():
                return self._call(node)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._evaluate(test)
                return _join((self._evaluate(body), self._evaluate(orelse)))
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return _join(map(self._evaluate, parts))
            case ast.Starred(value=value) | ast.NamedExpr(value=value):
                flow = self._evaluate(value)
                if isinstance(node, ast.NamedExpr):
                    self._assign(node.target, flow)
                return flow
            case (
                ast.ListComp(elt=element, generators=generators) | ast.GeneratorExp(elt=element, generators=generators)
            ):
                for each in generators:
                    self._assign(each.target, self._evaluate(each.iter))
                return self._evaluate(element)
            case ast.Compare(left=left, comparators=others):
                for side in (left, *others):
                    self._evaluate(side)
                return _NOTHING
            case ast.Dict(values=values):
                for value in values:
                    self._evaluate(value)
        return _NOTHING

    def _evaluate_access(self, node: ast.Name | ast.Attribute | ast.Subscript) -> _Flow:
        path = find_access_path(node)
        known = self._flows.get(path) if path is not None else None
        if known is not None:
            return known
        if isinstance(node, ast.Name):
            return _NOTHING
        if isinstance(node, ast.Attribute):
            if node.attr in _PLACES:
                return _NOTHING
            if self._is_own_parameter(node):
                return _LAYER
            flow = self._evaluate(node.value)
            return flow if node.attr in _TRANSPOSITIONS or node.attr == "data" else flow._replace(is_part=False)
        flow = self._evaluate(node.value)
        self._evaluate(node.slice)
        return flow._replace(is_part=True) if flow.products and not flow.is_reduced else flow

    def _is_own_parameter(self, node: ast.Attribute) -> bool:
        """Return True for an attribute to which the class of the method assigns a parameter."""
        cls = self.function.cls
        if cls is None or not isinstance(node.value, ast.Name) or node.value.id != "self":
            return False
        assigned = (value for _, value in cls.assignments.get(node.attr, ()))
        return any(
            tail_name(getattr(part, "func", part)) in ("Parameter", "Embedding", "ParameterList", "Linear")
            for value in assigned
            for part in walk(value)
        )

    def _apply_operator(
        self, op: ast.operator, left_node: ast.expr, right_node: ast.expr, node: ast.expr | None = None
    ) -> _Flow:
        left, right = self._evaluate(left_node), self._evaluate(right_node)
        if isinstance(op, ast.MatMult):
            return self._multiply([left_node, right_node], [left, right], node)
        made = _join((left, right))._replace(chain=0)
        if made.is_layer:
            return made
        is_of_number = isinstance(left_node, ast.Constant) or isinstance(right_node, ast.Constant)
        keeps_difference = left.is_difference or right.is_difference
        if isinstance(op, ast.Pow) or (isinstance(op, ast.Mult) and is_same_syntax(left_node, right_node)):
            made = made._replace(is_square=left.is_difference)
        elif not is_of_number and isinstance(op, (ast.Add, ast.Sub)):
            made = made._replace(is_difference=keeps_difference or isinstance(op, ast.Sub))
        else:
            made = made._replace(is_difference=keeps_difference)
        if isinstance(op, ast.Div) and node is not None and left.is_part and right.is_part:
            self._use_part(left, right, left_node, right_node, node)
        if isinstance(op, ast.Div):
            made = made._replace(terms=left.terms)
        elif isinstance(op, ast.Mult) and not is_of_number and not is_same_syntax(left_node, right_node):
            made = made._replace(terms=frozenset())
        if is_of_number or not (left.products and right.products):
            made = made._replace(is_part=left.is_part or right.is_part)
        return made

    def _use_part(self, left: _Flow, right: _Flow, left_node: ast.expr, right_node: ast.expr, node: ast.expr) -> None:
        """Record a product whose columns are divided by another column, as homogeneous coordinates are."""
        shared = left.products & right.products
        if shared and not is_same_syntax(left_node, right_node):
            self._record(shared, node)

    def _multiply(self, nodes: list[ast.expr], operands: list[_Flow], node: ast.expr | None) -> _Flow:
        made = _join(operands)
        is_cast = not (self._is_disabled or made.is_layer or made.is_wide or made.is_array)
        if node is None or not is_cast:
            return made
        if len(nodes) == 2 and is_same_syntax(*map(self._find_tensor, nodes)):
            self._square_matrices.add(node)
        chain = sum(operand.chain for operand in operands) + max(len(nodes) - 1, 1)
        # An iteration, as for an eigenvector, corrects the errors of the earlier one.
        if chain >= _CHAIN > max(operand.chain for operand in operands) and not self._loop_depth:
            self._record([node], node)
        return _Flow(made.products | {node}, terms=made.terms | {node}, chain=chain)

    def _find_tensor(self, node: ast.expr) -> ast.expr:
        """Return the tensor that an expression, or the variable that it names, transposes or views."""
        tensor, passed = _strip_views(node), set[str]()
        while isinstance(tensor, ast.Name) and tensor.id in self._aliases and tensor.id not in passed:
            passed.add(tensor.id)
            tensor = self._aliases[tensor.id]
        return tensor

    def _call(self, node: ast.Call) -> _Flow:
        func, name = node.func, tail_name(node.func)
        given = [self._evaluate(argument) for argument in node.args]
        named = {keyword.arg or "**": self._evaluate(keyword.value) for keyword in node.keywords}
        passed: set[int | str] = {place for place, flow in enumerate(given) if flow.is_layer}
        passed.update(key for key, flow in named.items() if flow.is_layer)
        if passed:
            self.layer_arguments.setdefault(name, set()).update(passed)
        arguments = [*given, *named.values()]
        receiver = self._receiver_of(func)
        nodes = list(node.args)
        if receiver is not None:
            arguments.insert(0, self._evaluate(receiver))
            nodes.insert(0, receiver)
        made = _join(arguments)
        if name in _PLACES:
            return _NOTHING
        if name in _ACTIVATIONS:
            return _LAYER
        if name in _PRODUCTS and (receiver is not None or self._is_torch(func)):
            return self._call_product(name, node, nodes, arguments, made)
        if self._is_layer(func, name, has_arguments=bool(arguments)):
            return _LAYER
        if root_name(func) in self._array_modules():
            return _ARRAY
        if made.products and (receiver is not None or self._is_torch(func)):
            self._check_use(name, node, nodes, arguments, made)
        return self._finish_call(name, node, arguments, made)

    def _call_product(
        self, name: str, node: ast.Call, nodes: list[ast.expr], arguments: list[_Flow], made: _Flow
    ) -> _Flow:
        """Return what is known of a product that a function or a method computes."""
        first = _PRODUCTS[name] + (name == "einsum")
        operands, flows = nodes[first:], arguments[first : len(nodes)]
        if len(operands) == 1 and isinstance(operands[0], ast.List):
            operands = operands[0].elts
            flows = list(map(self._evaluate, operands))
        return self._multiply(operands, flows, node) if len(operands) > 1 else made

    def _finish_call(self, name: str, node: ast.Call, arguments: list[_Flow], made: _Flow) -> _Flow:
        """Return what is known of the result of a call that is neither a product nor a layer."""
        texts = set(map(tail_name, (*node.args, *(keyword.value for keyword in node.keywords))))
        if name == "double" or texts & {"float64", "double"}:
            made = made._replace(is_wide=True)
        elif name in ("float", "half", "bfloat16") or texts & {"float32"}:
            made = made._replace(is_wide=False, is_cast=name == "float" or "float32" in texts)
        first = arguments[0] if arguments else _NOTHING
        # The other arguments of a shape op are sizes and places.
        made = first if is_shape_op(name) else made._replace(chain=0)
        if made.is_layer:
            return made
        if name.removesuffix("_") in _REDUCTIONS:
            return made._replace(is_reduced=True)
        if name in _KEEPING_PARTS or is_tensor_op(name):
            made = made._replace(
                is_reduced=first.is_reduced,
                is_part=(first.is_part and (name in _KEEPING_PARTS or is_shape_op(name)))
                or name in ("unbind", "chunk", "split", "tensor_split"),
                is_difference=first.is_difference or name in ("sub", "sub_"),
                is_square=first.is_square or (name in _SQUARES and first.is_difference),
            )
        return made

    def _check_use(self, name: str, node: ast.Call, nodes: list[ast.expr], arguments: list[_Flow], made: _Flow) -> None:
        """Record the products that a call needs the digits of."""
        base = name.removesuffix("_")
        first = arguments[0]
        if base in _ANGLES:
            self._record(made.products, node)
        elif base in _ROUNDINGS or (base in _DISTANCES and len(nodes) > 1):
            self._record(made.terms, node)
        elif base in _INVERSES:
            # Without a cast, the op has no kernel (AMP510), so no region is around the code.
            self._record(made.products if made.is_cast else (), node, with_squares=True)
        elif name == "grid_sample":
            grid = next((keyword.value for keyword in node.keywords if keyword.arg == "grid"), None)
            coordinates = self._evaluate(grid) if grid is not None else arguments[1] if len(arguments) > 1 else _NOTHING
            self._record(coordinates.products, node)
        elif (base in _NORMS and first.is_difference) or (base == "sum" and first.is_square):
            # Over an axis, each point has a length of its own. A loss reduces all axes.
            places = 1 if base == "sum" else 2
            if len(nodes) > places or any(keyword.arg in ("dim", "axis") for keyword in node.keywords):
                self._record(first.terms, node)

    def _record(self, products: Iterable[ast.expr], use: ast.expr, *, with_squares: bool = False) -> None:
        for product in products:
            if with_squares or product not in self._square_matrices:
                self.uses.setdefault(product, use)

    def _receiver_of(self, func: ast.expr) -> ast.expr | None:
        """Return the tensor whose method a call may call, or None for a function of a module."""
        if not isinstance(func, ast.Attribute):
            return None
        return None if root_name(func) in self.module.imports and not self._is_local(root_name(func)) else func.value

    def _is_local(self, name: str) -> bool:
        return name in self._flows

    def _is_torch(self, func: ast.expr) -> bool:
        imported = self.module.imports.get(root_name(func))
        return imported is not None and imported.module.partition(".")[0] in ("torch", "einops", "opt_einsum")

    def _array_modules(self) -> frozenset[str]:
        """Return the names of modules whose functions return no tensors."""
        return frozenset(
            name
            for name, imported in self.module.imports.items()
            if imported.module.partition(".")[0] in ARRAY_PACKAGES
        )

    def _is_layer(self, func: ast.expr, name: str, *, has_arguments: bool) -> bool:
        """Return True if a call may run a layer: a module, or an unknown callable."""
        if isinstance(func, ast.Name):
            if func.id in self.module.imports:
                return False
            called = self.module.functions_by_name.get(func.id, [])
            if called:
                return any(each in self._layer_functions for each in called)
            return func.id in {each.arg for each in self.function.parameters()} or self._is_local(func.id)
        if not isinstance(func, ast.Attribute):
            return True
        owner = root_name(func)
        if owner in self.module.imports and not self._is_local(owner):
            return False
        if owner == "self" and isinstance(func.value, ast.Name):
            method = self.function.cls.methods.get(name) if self.function.cls is not None else None
            return method is None or method in self._layer_functions
        return has_arguments and not _is_method_of_tensor(name)


def _is_method_of_tensor(name: str) -> bool:
    known = (_METHODS, _KEEPING_PARTS, _ANGLES, _ROUNDINGS, _INVERSES, _NORMS, _SQUARES, _PRODUCTS)
    return is_tensor_op(name) or is_tensor_op(name.removesuffix("_")) or any(name in names for names in known)


def _strip_views(node: ast.expr) -> ast.expr:
    """Return the tensor that an expression transposes or views."""
    while True:
        match node:
            case ast.Attribute(value=inner, attr=name) if name in _TRANSPOSITIONS:
                node = inner
            case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _TRANSPOSITIONS | _VIEWS:
                if isinstance(inner, ast.Name) and inner.id == "torch":
                    node = node.args[0] if node.args else inner
                else:
                    node = inner
            case _:
                return node


def find_layer_functions(module: Module) -> frozenset[Function]:
    """Return the functions that may run a layer: an attribute of their object, an op of networks or an argument.

    A function that calls such a function of its file is one, too.
    """
    callers: dict[Function, list[Function]] = {}
    todo = []
    for function in module.functions.values():
        runs_layer, called = _find_callees(function)
        if runs_layer:
            todo.append(function)
        for each in called:
            callers.setdefault(each, []).append(function)
    found = set(todo)
    while todo:
        for caller in callers.get(todo.pop(), ()):
            if caller not in found:
                found.add(caller)
                todo.append(caller)
    return frozenset(found)


def _find_callees(function: Function) -> tuple[bool, list[Function]]:
    """Return True if a function itself may run a layer, and the functions of its file that it calls."""
    names = {each.arg for each in function.parameters()} - {"self", "cls"}
    called: list[Function] = []
    for call in function.find_nodes(ast.Call):
        func, name = call.func, tail_name(call.func)
        if name in _ACTIVATIONS or (isinstance(func, ast.Name) and func.id in names):
            return True, called
        if isinstance(func, ast.Name):
            called += function.module.functions_by_name.get(func.id, [])
        elif isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self":
            method = function.cls.methods.get(name) if function.cls is not None else None
            if method is None and call.args:
                return True, called
            called += [method] if method is not None else []
    return False, called
