"""A checker of eventlogs, written by hand from RFC 21 and DESIGN section 2. It shares no code with leveret.

`Automaton.see` takes one event and raises Broken, with the name of the rule, when the log may not go on like that.
"""

from __future__ import annotations

from typing import Any


class Broken(AssertionError):
    """`rule` is the name of the rule that the log breaks."""

    def __init__(self, rule: str, story: list[str]) -> None:
        super().__init__(f"{rule}: {' '.join(story)}")
        self.rule = rule


class Automaton:
    """Follows one job's log. Its fields are what it has seen, in plain words."""

    def __init__(self) -> None:
        self.at = "nowhere"  # nowhere new depend priority sched run cleanup gone
        self.open: dict[str, set[str]] = {}  # "prolog x" → steps that it keeps back
        self.used: set[str] = set()
        self.has_resources = False
        self.gave_back = False
        self.last_release = False
        self.tasks = "none"  # none, running, over
        self.story: list[str] = []

    def _must(self, true: bool, rule: str) -> None:
        if not true:
            raise Broken(rule, self.story)

    def _unheld(self, step: str) -> None:
        holding = [key for key, steps in self.open.items() if step in steps]
        self._must(not holding, f"{step} under {holding[0].split()[0]}" if holding else "")

    def see(self, name: str, context: dict[str, Any] | None = None) -> None:
        context = context or {}
        self.story.append(name + (f"({context['description']})" if "description" in context else ""))
        self._must(self.at != "gone", "nothing after clean")
        self._must((self.at == "nowhere") == (name == "submit"), "submit is the first event, once")
        step = getattr(self, "_" + name.replace("-", "_"), None)
        if step is not None:
            step(context)

    def _submit(self, context: dict[str, Any]) -> None:
        self.at = "new"

    def _validate(self, context: dict[str, Any]) -> None:
        self._must(self.at == "new", "validate once, in NEW")
        self.at = "depend"

    def _invalidate(self, context: dict[str, Any]) -> None:
        self._must(self.at == "new", "invalidate in NEW")
        self.at = "gone"

    def _depend(self, context: dict[str, Any]) -> None:
        self._must(self.at == "depend", "depend once, after validate")
        self._unheld("depend")
        self.at = "priority"

    def _priority(self, context: dict[str, Any]) -> None:
        self._must(self.at in ("priority", "sched"), "priority after depend, before alloc")
        self.at = "sched"

    def _back_to_priority(self, context: dict[str, Any]) -> None:
        if self.at == "sched":
            self.at = "priority"

    _flux_restart = _back_to_priority

    def _urgency(self, context: dict[str, Any]) -> None:
        self._must(self.at != "cleanup", "urgency before CLEANUP")
        self._back_to_priority(context)

    _jobspec_update = _urgency

    def _alloc(self, context: dict[str, Any]) -> None:
        self._must(not self.has_resources, "alloc once")
        self._must(self.at in ("sched", "cleanup"), "alloc in SCHED, or late")
        self.has_resources = True
        if self.at == "sched":
            self.at = "run"

    def _resource_update(self, context: dict[str, Any]) -> None:
        self._must(self.has_resources and not self.gave_back, "resource-update of an allocation")

    def _start(self, context: dict[str, Any]) -> None:
        self._must(self.tasks == "none", "start once")
        self._must(self.has_resources and not self.gave_back, "start with resources")
        if self.at == "run":
            self._unheld("start")
        self.tasks = "running"

    def _finish(self, context: dict[str, Any]) -> None:
        self._must(self.tasks == "running", "finish once, after start")
        self.tasks = "over"
        if self.at == "run":
            self.at = "cleanup"

    def _release(self, context: dict[str, Any]) -> None:
        self._must(self.has_resources and not self.gave_back, "release of an allocation")
        self._must(not self.last_release, "nothing is released after the final release")
        if context.get("final"):
            self._must(self.tasks != "running", "no final release under running tasks")
            self.last_release = True

    def _free(self, context: dict[str, Any]) -> None:
        self._must(self.has_resources and not self.gave_back, "free once, after alloc")
        self._must(self.at == "cleanup", "free in CLEANUP")
        self._must(self.tasks != "running", "no free before the finish of a start")
        self._unheld("free")
        self.gave_back = True

    def _clean(self, context: dict[str, Any]) -> None:
        self._must(self.at == "cleanup", "clean in CLEANUP")
        self._must(self.gave_back or not self.has_resources, "clean after free")
        self._unheld("clean")
        self.at = "gone"

    def _exception(self, context: dict[str, Any]) -> None:
        if context["severity"] == 0:
            self.at = "cleanup"

    def _begin(self, kind: str, context: dict[str, Any], steps: set[str]) -> None:
        key = f"{kind} {context['description']}"
        self._must(key not in self.used, "the name of a hold is used once")
        self.used.add(key)
        self.open[key] = steps

    def _end(self, kind: str, context: dict[str, Any]) -> None:
        key = f"{kind} {context['description']}"
        self._must(key in self.open, "only what is open is finished")
        del self.open[key]

    def _dependency_add(self, context: dict[str, Any]) -> None:
        self._must(self.at in ("new", "depend"), "dependency-add before depend")
        self._begin("dependency", context, {"depend"})

    def _dependency_remove(self, context: dict[str, Any]) -> None:
        self._end("dependency", context)

    def _prolog_start(self, context: dict[str, Any]) -> None:
        self._must(self.tasks == "none" and self.at != "cleanup", "prolog-start before start")
        self._begin("prolog", context, {"start", "free", "clean"})

    def _prolog_finish(self, context: dict[str, Any]) -> None:
        self._end("prolog", context)

    def _epilog_start(self, context: dict[str, Any]) -> None:
        self._begin("epilog", context, {"free", "clean"})

    def _epilog_finish(self, context: dict[str, Any]) -> None:
        self._end("epilog", context)

    def _part_start(self, context: dict[str, Any]) -> None:
        steps = {"clean", *context.get("blocks", [])}
        if context.get("uses") == "nodes":
            steps.add("free")
        self._begin("part", context, steps)

    def _part_finish(self, context: dict[str, Any]) -> None:
        self._end("part", context)


def check(log: list[tuple[str, dict[str, Any] | None]]) -> Automaton:
    """Follow a whole log. Raises Broken."""
    automaton = Automaton()
    for name, context in log:
        automaton.see(name, context)
    return automaton
