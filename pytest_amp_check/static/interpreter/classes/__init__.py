"""Classes of the project: instances, attributes, inheritance and methods."""

from __future__ import annotations

from ..interpreter import HandlerTable
from .attributes import (
    get_attribute_of_each,
    get_class_attribute,
    get_instance_attribute,
    get_module_attribute,
    get_named_attribute,
    get_super_attribute,
)
from .instances import construct_instance, make_annotated_instance, make_fitting_instance
from .methods import InstanceHandler, call_class_method, call_instance_method, call_object, call_super_method


def register(handlers: HandlerTable) -> None:
    handlers.annotated_instances.append(make_annotated_instance)
    handlers.fitting_instances.append(make_fitting_instance)
    handlers.calls.update({"class": construct_instance, "instance": call_object})
    handlers.methods.update({"super": call_super_method, "class": call_class_method})
    handlers.attributes.update(
        {
            "named": get_named_attribute,
            "project module": get_module_attribute,
            "choice": get_attribute_of_each,
            "class": get_class_attribute,
            "super": get_super_attribute,
        }
    )
    for kind in ("instance", "module instance"):
        handlers.methods[kind] = call_instance_method
        handlers.attributes[kind] = get_instance_attribute
        handlers.contexts[kind] = InstanceHandler()
