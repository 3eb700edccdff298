"""The loaded plugins, in order, and the calls to them."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from leveret.config import Config
from leveret.errors import ConflictError, InvalidError, NotFoundError
from leveret.plugins.dependencies import Dependencies
from leveret.plugins.hooks import Answer, Answers, Plugin, Reject
from leveret.plugins.perilog import PerilogPlugin
from leveret.plugins.rabbit import Rabbit
from leveret.plugins.singleton import Singleton
from leveret.plugins.staging import Staging
from leveret.plugins.symbols import Symbols

#: always loaded, in this order
BUILTIN: dict[str, type[Plugin]] = {
    "dependencies": Dependencies,
    "singleton": Singleton,
    "symbols": Symbols,
    "perilog": PerilogPlugin,
    "staging": Staging,
    "rabbit": Rabbit,
}
#: loaded by name, when a site asks for them
LOADABLE: dict[str, str] = {
    "ports": "leveret.plugins.ports",
    "limits": "leveret.plugins.limits",
    "fairshare": "leveret.plugins.fairshare",
}
#: methods that may refuse a submission, by Reject or by raising InvalidError
REFUSING = ("create", "validate", "dependency", "update_")
ENTRY_POINTS = "leveret.plugins"
_BASE = {name for name in vars(Plugin) if not name.startswith("_")}


class Loaded:
    """One loaded plugin and where it came from."""

    __slots__ = ("builtin", "plugin", "source")

    def __init__(self, plugin: Plugin, source: str, builtin: bool) -> None:
        self.plugin = plugin
        self.source = source
        self.builtin = builtin


class Registry:
    """Calls go to plugins in load order; one that raises is reported through `on_error` and stops no other."""

    def __init__(self, on_error: Callable[[str, str, BaseException], None]) -> None:
        self.loaded: dict[str, Loaded] = {}
        self._on_error = on_error
        self._hooks: dict[str, list[tuple[Plugin, Callable[..., Any]]]] = {}

    def add(self, plugin: Plugin, source: str, builtin: bool = False) -> None:
        if plugin.name in self.loaded:
            raise ConflictError(f"a plugin named `{plugin.name}` is loaded already", "remove it first")
        self.loaded[plugin.name] = Loaded(plugin, source, builtin)
        self._index()

    def remove(self, name: str) -> Loaded:
        if name not in self.loaded:
            known = ", ".join(self.loaded)
            raise NotFoundError(f"no plugin named `{name}` is loaded", f"loaded: {known}")
        entry = self.loaded.pop(name)
        self._index()
        return entry

    def get(self, name: str) -> Plugin | None:
        entry = self.loaded.get(name)
        return None if entry is None else entry.plugin

    def _index(self) -> None:
        """Only methods that a plugin overrides are called at all."""
        self._hooks = {}
        for entry in self.loaded.values():
            plugin = entry.plugin
            for name in dir(type(plugin)):
                if name.startswith(("event_", "update_")) or (
                    name in _BASE and getattr(type(plugin), name) is not getattr(Plugin, name)
                ):
                    method = getattr(plugin, name)
                    if callable(method):
                        self._hooks.setdefault(name, []).append((plugin, method))

    def has(self, hook: str) -> bool:
        return hook in self._hooks

    def names(self, hook: str) -> list[str]:
        """The plugins that have a hook."""
        return [plugin.name for plugin, _ in self._hooks.get(hook, ())]

    def call(self, hook: str, label: str, *args: Any) -> Iterable[tuple[Plugin, Answer]]:
        """Every plugin's answers to one moment, in order. `label` names the job in error reports."""
        hooks = self._hooks.get(hook)
        if not hooks:
            return ()
        answers: list[tuple[Plugin, Answer]] = []
        for plugin, method in hooks:
            for answer in self._answers(plugin, method, label, *args):
                answers.append((plugin, answer))
        return answers

    def call_update(self, hook: str, label: str, *args: Any) -> list[Answer | None]:
        """The answers of every plugin that has the hook, None for one that accepts as it is. Raises InvalidError
        when a plugin fails: what it guards is not changed behind its back."""
        answers: list[Answer | None] = []
        for plugin, method in self._hooks.get(hook, ()):
            try:
                answer = method(*args)
                found = [answer] if answer is None or isinstance(answer, Answer) else list(answer)
                answers += found or [None]
            except InvalidError:
                raise
            except Exception as error:
                self._on_error(plugin.name, label, error)
                raise InvalidError(f"plugin `{plugin.name}` failed", "see the daemon's log") from error
        return answers

    def ask_config(self, plugin: Plugin, config: Config) -> list[Reject]:
        """The moment `config`: the refusals. Raises what the plugin raises."""
        answer = plugin.config(config)
        answers = [answer] if isinstance(answer, Answer) else list(answer or ())
        return [one for one in answers if isinstance(one, Reject)]

    def ask_query(self, plugin: Plugin) -> dict[str, Any]:
        """What the plugin says of itself; nothing when it fails or says what is no JSON."""
        try:
            return dict(json.loads(json.dumps(plugin.query() or {})))
        except Exception as error:
            self._on_error(plugin.name, "", error)
            return {}

    def call_one(self, plugin: Plugin, hook: str, label: str, *args: Any) -> list[Answer]:
        return self._answers(plugin, getattr(plugin, hook), label, *args)

    def _answers(self, plugin: Plugin, method: Callable[..., Answers], label: str, *args: Any) -> list[Answer]:
        try:
            answer = method(*args)
            if answer is None:
                return []
            answers = [answer] if isinstance(answer, Answer) else list(answer)
            for one in answers:
                if not isinstance(one, Answer):
                    raise TypeError(f"{method.__name__} answered {one!r}, which is not an Answer")
            return answers
        except Exception as error:
            if isinstance(error, InvalidError) and method.__name__.startswith(REFUSING):
                raise
            self._on_error(plugin.name, label, error)
            return []

    def first(self, hook: str, label: str, *args: Any) -> Any:
        """The first answer that is not None."""
        for plugin, method in self._hooks.get(hook, ()):
            try:
                answer = method(*args)
            except Exception as error:
                self._on_error(plugin.name, label, error)
                continue
            if answer is not None:
                return answer
        return None

    def first_text(self, hook: str, label: str, *args: Any) -> str:
        """The first answer that is not empty."""
        for plugin, method in self._hooks.get(hook, ()):
            try:
                if text := str(method(*args) or ""):
                    return text
            except Exception as error:
                self._on_error(plugin.name, label, error)
        return ""

    def schemes(self) -> list[str]:
        """The dependency schemes that loaded plugins name."""
        return [scheme for entry in self.loaded.values() for scheme in entry.plugin.schemes]

    def for_scheme(self, scheme: str) -> Plugin | None:
        for entry in self.loaded.values():
            if scheme in entry.plugin.schemes or hasattr(entry.plugin, _hook_name(scheme)):
                return entry.plugin
        return None


def _hook_name(scheme: str) -> str:
    return "dependency_" + re.sub(r"\W", "_", scheme)


def dependency_hook(plugin: Plugin, scheme: str) -> str:
    """The method that answers for a scheme."""
    name = _hook_name(scheme)
    return name if hasattr(plugin, name) else "dependency"


def load_class(source: str) -> tuple[str, str, type[Plugin]]:
    """(name, source as it can be loaded again, class) for FILE.py or the name of an entry point or built-in.

    Raises InvalidError with the reason when the file cannot be used.
    """
    if source.endswith(".py") or "/" in source:
        path = Path(source)
        if not path.is_absolute():
            raise InvalidError(f"{source}: the path of a plugin must be absolute")
        if not path.is_file():
            raise NotFoundError(f"{source}: No such file or directory")
        name = path.stem
        return name, str(path), _class_in(_module(name, path), source)
    if source in BUILTIN:
        return source, source, BUILTIN[source]
    if source in LOADABLE:
        return source, source, _class_in(importlib.import_module(LOADABLE[source]), source)
    for point in metadata.entry_points(group=ENTRY_POINTS):
        if point.name == source:
            try:
                found = point.load()
            except Exception as error:
                raise InvalidError(f"plugin `{source}`: {error!r}") from error
            if isinstance(found, ModuleType):
                found = _class_in(found, source)
            return source, source, found
    raise NotFoundError(
        f"no plugin named `{source}`",
        f"a plugin is a FILE.py, an entry point of group {ENTRY_POINTS}, or one of: {', '.join(LOADABLE)}",
    )


def _module(name: str, path: Path) -> ModuleType:
    unique = "leveret_plugin_" + re.sub(r"\W", "_", name)
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise InvalidError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(unique, None)
        if isinstance(error, SyntaxError):
            raise InvalidError(f"{path}:{error.lineno}: {error.msg}") from error
        raise InvalidError(f"{path}: {type(error).__name__}: {error}") from error
    return module


def _class_in(module: ModuleType, source: str) -> type[Plugin]:
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Plugin)
        and value is not Plugin
        and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise InvalidError(f"{source}: found {len(classes)} classes derived from Plugin", "one class a file")
    return classes[0]
