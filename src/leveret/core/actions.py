"""What is due next for a job: asked by level, so asking twice is harmless (DESIGN section 5.2).

The answer names effects; the manager carries them out. `Post` is an event that follows from the
job's own state; `Ask` goes to somebody else (scheduler, engine, holders) and is answered later.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import msgspec

from leveret.core.job import Job
from leveret.core.transitions import CLEANUP, DEPEND, PRIORITY, RUN, SCHED


class Post(msgspec.Struct, frozen=True):
    """Post this event now, in the same turn."""

    name: str
    context: dict[str, Any] | None = None


class Ask(msgspec.Struct, frozen=True):
    """Ask for something, once: it is in flight until its answer is logged.

    priority  the priority plugin        alloc   the scheduler       withdraw  take back an alloc request
    start     the engine                 kill    the engine          stop      holders of prologs and start-blocking parts
    kill-now  the engine, with SIGKILL           end-parts     holders of parts that the cancel's intent ends
    end-auxiliary  holders of auxiliary parts, once nothing else is left
    """

    what: str


ASK_PRIORITY, ASK_ALLOC, ASK_WITHDRAW = Ask("priority"), Ask("alloc"), Ask("withdraw")
ASK_START, ASK_KILL, ASK_STOP = Ask("start"), Ask("kill"), Ask("stop")
ASK_KILL_NOW, ASK_END_PARTS, ASK_END_AUXILIARY = Ask("kill-now"), Ask("end-parts"), Ask("end-auxiliary")
POST_DEPEND, POST_FREE, POST_CLEAN = Post("depend"), Post("free"), Post("clean")
POST_RELEASE = Post("release", {"ranks": "all", "final": True})


def next_actions(job: Job, in_flight: Container[str]) -> list[Post | Ask]:
    """What is due. `in_flight` holds the `what` of asks that have been made and not answered.

    An asked `start` that has not been answered keeps `free` and `clean` back: tasks may be running.
    """
    state = job.state
    if state is DEPEND:
        return [] if job.blocked("depend") else [POST_DEPEND]
    if state is PRIORITY:
        return [] if "priority" in in_flight else [ASK_PRIORITY]
    if state is SCHED:
        if job.priority == 0:
            return [ASK_WITHDRAW] if "alloc" in in_flight else []
        return [] if "alloc" in in_flight else [ASK_ALLOC]
    if state is RUN:
        if job.started or "start" in in_flight or job.blocked("start"):
            return []
        return [ASK_START]
    if state is CLEANUP:
        return _cleanup(job, in_flight)
    return []


def _cleanup(job: Job, in_flight: Container[str]) -> list[Post | Ask]:
    due: list[Post | Ask] = []
    if job.failed_parts and job.status is not None and job.fatal is None:
        name, note = next(iter(job.failed_parts.items()))
        return [Post("exception", {"type": "part", "severity": 0, "note": note or f"{name} failed"})]
    if "alloc" in in_flight:
        due.append(ASK_WITHDRAW)
    if job.fatal is not None and "stop" not in in_flight and job.blocked("start"):
        due.append(ASK_STOP)
    if job.ended_by(job.intent) and "end-parts" not in in_flight:
        due.append(ASK_END_PARTS)
    if job.status is None and (job.started or "start" in in_flight):
        # free never precedes the finish of a requested start
        if "kill" not in in_flight:
            due.append(ASK_KILL)
        if job.intent == "force" and "kill-now" not in in_flight:
            due.append(ASK_KILL_NOW)
        return due
    if job.holds and "end-auxiliary" not in in_flight and all(h.role == "auxiliary" for h in job.holds.values()):
        due.append(ASK_END_AUXILIARY)
    if job.started and not job.released and not job.freed:
        due.append(POST_RELEASE)
        return due
    if job.allocated and not job.freed:
        if not job.blocked("free"):
            due.append(POST_FREE)
        return due
    if not job.blocked("clean"):
        due.append(POST_CLEAN)
    return due
