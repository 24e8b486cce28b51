"""Program of a configuration file: one event for each setting of low precision."""

from __future__ import annotations

from ...protocol import events as e
from ...protocol.event_graph import Graph, Node, Program
from ...protocol.events import Event
from ...protocol.sites import Site
from .documents import load_settings
from .formats import LowSetting, low_settings


def make_program(path: str, text: str) -> Program:
    """Return the program of a configuration file. Raise :class:`.Unreadable`."""
    program = Program()
    program.attributes.enters_autocast = False
    graph = Graph("<configuration>", (path, 0))
    graph.nodes.append(Node())
    for low in low_settings(load_settings(path, text)):
        graph.nodes[-1].edges.append((len(graph.nodes), -1, True))
        graph.nodes.append(Node(_make_event(program, path, low)))
    program.graphs.append(graph)
    return program


def _make_event(program: Program, path: str, low: LowSetting) -> Event:
    setting = low.setting
    site = Site(path, setting.line, setting.column, setting.line, setting.end_column)
    value = str(setting.value).lower() if isinstance(setting.value, bool) else setting.value
    names = {"call": f"{setting.key}: {value}", "instead": low.instead}
    if low.effect in ("reduction", "window"):
        how = "window" if low.effect == "window" else "setting"
        return e.LowReduction(site, dtype=low.dtype, how=how, guessed=True, names=names)
    model = program.add_object("module", "the model", site)
    program.attributes.training.trained_modules.add(model.key)
    return e.ModuleCast(site, model.key, dtype=low.dtype, how="setting", names=names)
