"""Models of torch modules: run, cast and wrap."""

from __future__ import annotations

from ....protocol import torch_api
from ...interpreter.interpreter import HandlerTable
from ...interpreter.values.definitions import ExternalName
from .forwards import call_module, call_module_instance
from .methods import call_cast_training_params, call_module_method, get_module_attribute, get_wrapped_module
from .wrappers import call_register_comm_hook, call_script, make_policy, wrap_module


def register(handlers: HandlerTable) -> None:
    handlers.named_functions["diffusers.training_utils.cast_training_params"] = call_cast_training_params
    handlers.calls["module"] = call_module
    handlers.calls["module instance"] = call_module_instance
    handlers.methods.update({"module": call_module_method, "loss": call_module_method})
    handlers.attributes["module"] = get_module_attribute
    handlers.inherited_attributes.append(get_wrapped_module)
    handlers.named_functions.update(
        dict.fromkeys(
            (f"torch.distributed.fsdp.{name}" for name in ("MixedPrecision", "MixedPrecisionPolicy")), make_policy
        )
    )
    handlers.torch_roles.update(
        {
            torch_api.WRAP_MODULE: wrap_module,
            torch_api.COMPILE: wrap_module,
            torch_api.SCRIPT: call_script,
            torch_api.REGISTER_HOOK: call_register_comm_hook,
            # The wrapped hook casts the gradients to float16.
            torch_api.COMPRESS: lambda *_: ExternalName(min(torch_api.FP16_HOOKS)),
        }
    )
