"""The checker itself: every rule, broken once, is caught by name; good logs pass."""

from __future__ import annotations

import pytest
from automaton import Broken, check

SUBMIT = "submit"
TO_SCHED = "submit validate depend priority"
TO_RUN = f"{TO_SCHED} alloc"
CANCEL = "exception/0"


def log(text: str) -> list[tuple[str, dict]]:
    """`name`, `name(hold)`, `exception/SEVERITY`, `part-start(x:free,nodes)`, `release!` (final)."""
    events = []
    for word in text.split():
        name, _, rest = word.partition("(")
        context: dict = {}
        if rest:
            hold, _, how = rest.rstrip(")").partition(":")
            context["description"] = hold
            steps = [w for w in how.split(",") if w]
            if "nodes" in steps:
                steps.remove("nodes")
                context["uses"] = "nodes"
            if steps:
                context["blocks"] = steps
        name, _, severity = name.partition("/")
        if severity:
            context["severity"] = int(severity)
        if name.endswith("!"):
            name, context["final"] = name[:-1], True
        events.append((name, context))
    return events


GOOD = [
    f"{TO_RUN} start finish release! free clean",
    f"{TO_RUN} prolog-start(p) prolog-finish(p) start finish epilog-start(e) release! epilog-finish(e) free clean",
    "submit dependency-add(d) validate dependency-remove(d) depend priority exception/0 clean",
    "submit dependency-add(d) validate exception/0 clean",
    f"{TO_SCHED} urgency priority flux-restart priority jobspec-update priority alloc start finish free clean",
    f"{TO_SCHED} {CANCEL} epilog-start(e) epilog-finish(e) clean",
    f"{TO_RUN} {CANCEL} start finish free clean",
    f"{TO_SCHED} {CANCEL} alloc free clean",
    f"{TO_RUN} prolog-start(p) {CANCEL} epilog-start(e) prolog-finish(p) epilog-finish(e) free clean",
    "submit invalidate",
    f"{TO_RUN} memo somebodys-own start exception/3 finish part-start(out) free part-finish(out) clean",
]

BAD = {
    "validate": "submit is the first event, once",
    "submit submit": "submit is the first event, once",
    "submit validate validate": "validate once, in NEW",
    "submit validate invalidate": "invalidate in NEW",
    "submit depend": "depend once, after validate",
    "submit validate depend depend": "depend once, after validate",
    "submit validate dependency-add(d) depend": "depend under dependency",
    "submit validate priority": "priority after depend, before alloc",
    f"{TO_RUN} priority": "priority after depend, before alloc",
    "submit validate depend alloc": "alloc in SCHED, or late",
    f"{TO_RUN} {CANCEL} alloc": "alloc once",
    f"{TO_SCHED} start": "start with resources",
    f"{TO_RUN} {CANCEL} free start": "start with resources",
    f"{TO_RUN} start start": "start once",
    f"{TO_RUN} prolog-start(p) start": "start under prolog",
    f"{TO_RUN} part-start(in:start) start": "start under part",
    f"{TO_RUN} finish": "finish once, after start",
    f"{TO_RUN} start finish finish": "finish once, after start",
    f"{TO_SCHED} release": "release of an allocation",
    f"{TO_RUN} start finish release! release!": "nothing is released after the final release",
    f"{TO_RUN} start release!": "no final release under running tasks",
    f"{TO_SCHED} {CANCEL} free": "free once, after alloc",
    f"{TO_RUN} free": "free in CLEANUP",
    f"{TO_RUN} start finish free free": "free once, after alloc",
    f"{TO_RUN} start {CANCEL} free": "no free before the finish of a start",
    f"{TO_RUN} prolog-start(p) {CANCEL} free": "free under prolog",
    f"{TO_RUN} start finish epilog-start(e) free": "free under epilog",
    f"{TO_RUN} start finish part-start(u:free) free": "free under part",
    f"{TO_RUN} start finish part-start(u:nodes) free": "free under part",
    f"{TO_RUN} clean": "clean in CLEANUP",
    f"{TO_RUN} start finish clean": "clean after free",
    f"{TO_SCHED} epilog-start(e) {CANCEL} clean": "clean under epilog",
    f"{TO_SCHED} prolog-start(p) {CANCEL} clean": "clean under prolog",
    f"{TO_RUN} start finish part-start(out) free clean": "clean under part",
    f"{TO_SCHED} {CANCEL} clean memo": "nothing after clean",
    "submit invalidate memo": "nothing after clean",
    f"{TO_SCHED} dependency-add(d)": "dependency-add before depend",
    "submit validate dependency-remove(d)": "only what is open is finished",
    f"{TO_RUN} prolog-start(p) prolog-finish(p) prolog-start(p)": "the name of a hold is used once",
    f"{TO_RUN} start prolog-start(p)": "prolog-start before start",
    f"{TO_RUN} prolog-finish(p)": "only what is open is finished",
    f"{TO_RUN} epilog-start(e) epilog-finish(e) epilog-finish(e)": "only what is open is finished",
    f"{TO_RUN} part-finish(p)": "only what is open is finished",
    f"{TO_SCHED} {CANCEL} urgency": "urgency before CLEANUP",
    f"{TO_SCHED} {CANCEL} jobspec-update": "urgency before CLEANUP",
    f"{TO_SCHED} resource-update": "resource-update of an allocation",
}


@pytest.mark.parametrize("text", GOOD)
def test_a_good_log_passes(text: str) -> None:
    assert check(log(text)).at == "gone"


@pytest.mark.parametrize("text", BAD)
def test_each_rule_is_caught_when_it_is_broken(text: str) -> None:
    with pytest.raises(Broken) as caught:
        check(log(text))
    assert caught.value.rule == BAD[text]
