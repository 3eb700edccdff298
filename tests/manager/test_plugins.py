"""The plugin interface: every moment in order, every answer with the event that caused it, and what survives a crash."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from rig import UID, Config, Rig, simulate, spec

from leveret.config import JobManager, PluginDirective
from leveret.core.event import Event
from leveret.core.job import Hold, Job
from leveret.core.transitions import State
from leveret.core.verdict import CANCELED, COMPLETED, FAILED
from leveret.errors import ConfigError, ConflictError, EventError, InvalidError, NotFoundError
from leveret.manager import plugindata, userevents
from leveret.plugins.hooks import (
    NOT_YET,
    Annotate,
    Answers,
    DependencyHold,
    EpilogHold,
    Finish,
    PartHold,
    Plugin,
    Post,
    PrologHold,
    Reject,
    Remember,
    SetEnv,
    UpdateJobspec,
)

TO_SCHED = ["submit", "validate", "depend", "priority"]


async def forever() -> None:
    import asyncio

    await asyncio.Event().wait()


def port(rig: Rig, plugin: str) -> Any:
    found = rig.manager.registry.get(plugin)
    assert found is not None
    return found.manager


# ---- moments ----------------------------------------------------------------------------------------


def test_every_moment_of_a_life_in_order(tmp_path: Path) -> None:
    seen: list[str] = []

    class Scribe(Plugin):
        def create(self, job: Job, spec: dict[str, Any]) -> Answers:
            seen.append("create")
            return None

        def validate(self, job: Job, spec: dict[str, Any]) -> Answers:
            seen.append("validate")
            return None

        def new(self, job: Job) -> Answers:
            seen.append("new")
            return None

        def dependency_ticket(self, job: Job, dependency: dict[str, Any]) -> Answers:
            seen.append(f"dependency {dependency['value']}")
            return None

        def depend(self, job: Job) -> Answers:
            seen.append("depend")
            return None

        def priority(self, job: Job) -> int:
            seen.append("priority")
            return 7

        def state_depend(self, job: Job) -> Answers:
            seen.append("DEPEND")
            return None

        def state_priority(self, job: Job) -> Answers:
            seen.append("PRIORITY")
            return None

        def state_sched(self, job: Job) -> Answers:
            seen.append("SCHED")
            return None

        def state_run(self, job: Job) -> Answers:
            seen.append("RUN")
            return None

        def event_start(self, job: Job, event: Event) -> Answers:
            seen.append("start")
            return None

        def state_cleanup(self, job: Job) -> Answers:
            seen.append("CLEANUP")
            return None

        def state_inactive(self, job: Job) -> Answers:
            seen.append("INACTIVE")
            return None

        def inactive_add(self, job: Job) -> Answers:
            assert job.done
            seen.append("inactive_add")
            return None

        def destroy(self, job: Job) -> None:
            assert self.manager.job(job.id) is None
            seen.append("destroy")

        def inactive_remove(self, jobid: int) -> None:
            seen.append(f"inactive_remove {jobid}")

    async def body() -> None:
        rig = Rig(tmp_path, [Scribe])
        jobid = await rig.submit(dependencies=[{"scheme": "ticket", "value": "blue"}])
        await rig.run(jobid)
        rig.manager.purges.purge([jobid])
        await rig.quiet()
        assert seen == [
            "create", "validate", "new", "dependency blue", "DEPEND", "depend", "PRIORITY", "priority", "SCHED", "RUN",
            "start", "CLEANUP", "INACTIVE", "inactive_add", "destroy", f"inactive_remove {jobid}",
        ]  # fmt: skip
        rig.close()

    simulate(body)


def test_create_refuses_and_what_it_answers_follows_submit(tmp_path: Path) -> None:
    destroyed: list[int] = []

    class Gate(Plugin):
        def create(self, job: Job, spec: dict[str, Any]) -> Answers:
            if spec["attributes"].get("user", {}).get("bad"):
                return Reject("nope", "ask the site")
            return [Post("test-event"), Remember(seen=True)]

        def destroy(self, job: Job) -> None:
            destroyed.append(job.id)

    async def body() -> None:
        rig = Rig(tmp_path, [Gate])
        with pytest.raises(InvalidError, match="nope") as refused:
            await rig.submit(bad=True)
        assert refused.value.hint == "ask the site"
        assert len(destroyed) == 1 and rig.manager.entries == {}
        assert rig.store.active_ids() == []
        jobid = await rig.submit(urgency=0)
        assert rig.story(jobid) == ["submit", "test-event", *TO_SCHED[1:]]
        assert port(rig, "gate").recall(jobid, "seen") is True
        rig.close()

    simulate(body)


def test_depend_is_the_last_gate_and_is_asked_again(tmp_path: Path) -> None:
    asked: list[int] = []

    class Last(Plugin):
        def depend(self, job: Job) -> Answers:
            asked.append(job.id)
            return DependencyHold("budget")

    async def body() -> None:
        rig = Rig(tmp_path, [Last])
        jobid = await rig.submit(urgency=0)
        assert rig.story(jobid) == ["submit", "validate", "dependency-add(budget)"]
        port(rig, "last").finish(jobid, "budget")
        await rig.quiet()
        assert rig.story(jobid)[3:] == ["dependency-remove(budget)", "depend", "priority"]
        assert asked == [jobid, jobid]
        rig.check()
        rig.close()

    simulate(body)


def test_a_priority_that_is_not_yet_known_keeps_the_job_until_it_is(tmp_path: Path) -> None:
    known: dict[int, int] = {}

    class Fair(Plugin):
        def priority(self, job: Job) -> Any:
            return known.get(job.id, NOT_YET)

    async def body() -> None:
        rig = Rig(tmp_path, [Fair])
        jobid = await rig.submit()
        held = await rig.submit(urgency=0)
        assert rig.job(held).priority == 0, "a held job needs no priority of a plugin's"
        assert rig.job(jobid).state is State.PRIORITY
        assert rig.manager.record(rig.manager.entries[jobid])["waiting_for"] == "priority of fair"
        await rig.restart()
        assert rig.story(jobid) == TO_SCHED[:3], "after a crash it is asked again, and waits again"
        known[jobid] = 99
        port(rig, "fair").reprioritize()
        await rig.quiet()
        assert rig.job(jobid).priority == 99 and "alloc" in rig.story(jobid)
        other = await rig.submit()  # waits for the cores of the first in PRIORITY
        known[other] = 5
        port(rig, "fair").reprioritize(other)
        await rig.quiet()
        await rig.run(jobid)
        await rig.run(other)
        await rig.cancel(held)
        rig.over()
        rig.close()

    simulate(body)


def test_new_priorities_of_waiting_jobs_change_their_order(tmp_path: Path) -> None:
    bonus: dict[int, int] = {}

    class Fair(Plugin):
        def priority(self, job: Job) -> int:
            return 100 + bonus.get(job.id, 0)

    async def body() -> None:
        rig = Rig(tmp_path, [Fair])
        first = await rig.submit(2)
        second, third = await rig.submit(2), await rig.submit(2)
        bonus[third] = 50
        port(rig, "fair").reprioritize()
        await rig.quiet()
        assert rig.story(third).count("priority") == 2 and rig.story(second).count("priority") == 1
        await rig.run(first)
        assert "alloc" in rig.story(third) and "alloc" not in rig.story(second)
        await rig.run(third)
        await rig.run(second)
        rig.over()
        rig.close()

    simulate(body)


def test_removing_the_plugin_that_says_not_yet_lets_its_jobs_go(tmp_path: Path) -> None:
    class Fair(Plugin):
        def priority(self, job: Job) -> Any:
            return NOT_YET

    async def body() -> None:
        rig = Rig(tmp_path, [Fair])
        jobid = await rig.submit()
        assert rig.job(jobid).state is State.PRIORITY
        rig.manager.tap.remove("fair")
        await rig.quiet()
        await rig.run(jobid)
        assert rig.verdict(jobid).result == COMPLETED
        rig.close()

    simulate(body)


# ---- answers ----------------------------------------------------------------------------------------


class Memory(Plugin):
    """R42: what it knows of a job is stored with the event, and it keeps nothing in memory."""

    def state_run(self, job: Job) -> Answers:
        return [Remember(ports=[1, 2], gone="x"), PrologHold("ports")]

    def event_prolog_finish(self, job: Job, event: Event) -> Answers:
        return Remember(gone=None)


def test_r42_plugin_data_is_stored_with_its_event_and_comes_back_after_a_crash(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, [Memory])
        jobid = await rig.submit()
        assert rig.story(jobid)[-1] == "prolog-start(ports)"
        rows = sorted(key for key in rig.store.kv_keys(jobid) if key.startswith("plugin/"))
        assert rows == ["plugin/memory/gone", "plugin/memory/ports"]
        await rig.restart()
        memory = port(rig, "memory")
        assert memory.recall(jobid, "ports") == [1, 2] and memory.recall(jobid, "gone") == "x"
        assert memory.recall(jobid, "never", 5) == 5
        memory.finish(jobid, "ports")
        await rig.quiet()
        assert memory.recall(jobid, "gone") is None
        await rig.restart()
        assert port(rig, "memory").recall(jobid, "gone") is None
        await rig.run(jobid)
        assert [key for key in rig.store.kv_keys(jobid) if key.startswith("plugin/")] == [], "gone with the job"
        rig.over()
        rig.close()

    simulate(body)


def test_data_of_a_turn_that_does_not_come_about_is_not_remembered(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, [Memory])
        jobid = await rig.submit(urgency=0)
        memory = port(rig, "memory")
        memory.answer(jobid, Remember(a=1))
        await rig.quiet()
        with pytest.raises(ZeroDivisionError), rig.store_turn() as turn:
            memory.answer(jobid, Remember(a=2), Annotate(user={"x": 1}))
            assert memory.recall(jobid, "a") == 2
            turn.post(rig.manager.entries[jobid], "checkpoint")
            raise ZeroDivisionError
        assert memory.recall(jobid, "a") == 1
        assert rig.manager.record(rig.manager.entries[jobid])["annotations"] == {}
        await rig.restart()
        assert port(rig, "memory").recall(jobid, "a") == 1
        rig.close()

    simulate(body)


class Envoy(Plugin):
    def state_run(self, job: Job) -> Answers:
        return [SetEnv(PORTS="1-2"), SetEnv({"a.b": "dots", "HOME": None}), PrologHold("late")]


@pytest.mark.parametrize("crash", [False, True])
def test_environment_that_a_prolog_sets_reaches_the_tasks(tmp_path: Path, crash: bool) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, [Envoy])
        jobid, _ = rig.manager.submit(
            {**(given := spec()), "attributes": {**given["attributes"], "system": {
                **given["attributes"]["system"], "environment": {"HOME": "/home", "KEPT": "1"}}}},
            16, [], UID,
        )  # fmt: skip
        await rig.quiet()
        port(rig, "envoy").answer(jobid, SetEnv(LATER="from work"))
        await rig.quiet()
        if crash:
            await rig.restart()
        port(rig, "envoy").finish(jobid, "late")
        await rig.quiet()
        sent = rig.engine.take("start", f"job/{jobid}")[3]
        env = {**sent["base_env"], **sent["env"]}
        assert (env["PORTS"], env["a.b"], env["LATER"], env["KEPT"]) == ("1-2", "dots", "from work", "1")
        assert "HOME" not in env
        assert rig.story(jobid).count("jobspec-update") == 3
        with pytest.raises(EventError, match="start"), rig.store_turn() as turn:
            turn.post(rig.manager.entries[jobid], "jobspec-update", {"attributes.system.environment.X": "1"})
        rig.say(jobid, "start")
        rig.say(jobid, "exit", status=0)
        await rig.quiet()
        rig.over()
        rig.close()

    simulate(body)


def test_a_jobspec_update_changes_what_is_scheduled_also_after_a_crash(tmp_path: Path) -> None:
    class Longer(Plugin):
        def state_depend(self, job: Job) -> Answers:
            return [
                UpdateJobspec({"attributes.system.duration": 77.0}),
                UpdateJobspec({"attributes.system.duration": -1}),  # not a jobspec that could run: refused, logged
            ]

    async def body() -> None:
        rig = Rig(tmp_path, [Longer])
        jobid = await rig.submit(urgency=0)
        assert rig.story(jobid) == ["submit", "validate", "jobspec-update", "depend", "priority"]
        assert rig.manager.entries[jobid].digest.duration_s == 77.0
        assert any("duration" in str(line) for line in rig.log.lines)
        await rig.restart()
        assert rig.manager.entries[jobid].digest.duration_s == 77.0
        assert rig.manager.jobspec(jobid)["attributes"]["system"]["duration"] == 77.0
        assert rig.manager.base_jobspec(jobid)["attributes"]["system"]["duration"] == 0
        rig.close()

    simulate(body)


def test_annotations_are_shown_and_are_no_event(tmp_path: Path) -> None:
    class Notes(Plugin):
        def state_sched(self, job: Job) -> Answers:
            return Annotate({"user": {"wait": "for licences"}}, site={"a": 1})

    async def body() -> None:
        rig = Rig(tmp_path, [Notes])
        jobid = await rig.submit(urgency=0)
        shown = rig.manager.record(rig.manager.entries[jobid])["annotations"]
        assert shown == {"user": {"wait": "for licences"}, "site": {"a": 1}}
        assert rig.story(jobid) == TO_SCHED
        rig.close()

    simulate(body)


@pytest.mark.parametrize(
    "answer", [Post("x", {"a": object()}), Remember(a=object()), Reject("too late"), UpdateJobspec({"a": object()})]
)
def test_an_answer_that_is_no_json_or_comes_too_late_is_logged_and_leaves_the_rest(tmp_path: Path, answer: Any) -> None:
    class Bad(Plugin):
        def state_run(self, job: Job) -> Answers:
            return [answer, Post("after")]

    async def body() -> None:
        rig = Rig(tmp_path, [Bad])
        jobid = await rig.submit()
        assert rig.story(jobid) == [*TO_SCHED, "alloc", "after"]
        (line,) = [line for line in rig.log.lines if "plugin failed" in str(line)]
        assert ("bad" in str(line) and "too late" in str(line)) or "JSON" in str(line) or "object" in str(line)
        await rig.run(jobid)
        rig.over()
        rig.close()

    simulate(body)


# ---- update_KEY -------------------------------------------------------------------------------------


def test_update_key_accepts_adds_and_refuses(tmp_path: Path) -> None:
    class Guard(Plugin):
        def update_duration(self, job: Job, value: Any) -> Answers:
            if value > 100:
                return Reject("too long", "at most 100")
            return UpdateJobspec({"attributes.user.was": job.urgency})

        def update_user_colour(self, job: Job, value: Any) -> Answers:
            return None

        def update_queue(self, job: Job, value: Any) -> Answers:
            raise RuntimeError("broken")

    async def body() -> None:
        rig = Rig(tmp_path, [Guard])
        jobid = await rig.submit(urgency=0)

        def ask(**updates: Any) -> Any:
            keys = {"attributes." + key.replace("__", "."): value for key, value in updates.items()}
            return plugindata.ask_update(rig.manager, rig.job(jobid), keys)

        assert ask(system__duration=50) == (
            {"attributes.system.duration": 50, "attributes.user.was": 0}, {"attributes.system.duration"},
        )  # fmt: skip
        assert ask(user__colour="red")[1] == {"attributes.user.colour"}
        assert ask(user__other="red")[1] == set(), "no plugin knows it"
        with pytest.raises(InvalidError, match="too long"):
            ask(system__duration=101)
        with pytest.raises(InvalidError, match="`guard` failed"):
            ask(system__queue="x")  # what a plugin guards is not changed behind its back
        rig.close()

    simulate(body)


# ---- loading ----------------------------------------------------------------------------------------

EARLY = """\
from leveret.plugins.hooks import Plugin


class Early(Plugin):
    def __init__(self, manager, name, conf):
        super().__init__(manager, name, conf)
        conf["log"].append("loaded")

    def new(self, job):
        self.conf["log"].append(f"new {job.id} {job.n}")

    def event(self, job, event):
        self.conf["log"].append(event.name)

    def query(self):
        return {"jobs": len(list(self.manager.active())), "name": "mine"}
"""


def test_r41_no_event_is_posted_before_every_configured_plugin_is_loaded_and_has_seen_the_jobs(tmp_path: Path) -> None:
    log: list[str] = []
    files = []
    for name in ("early", "later"):
        files.append(tmp_path / f"{name}.py")
        files[-1].write_text(EARLY)
    plugins = [PluginDirective(str(file), {"log": log, "by": file.stem}) for file in files]

    async def body() -> None:
        rig = Rig(tmp_path, config=Config(job_manager=JobManager(plugins=plugins)))
        jobid = await rig.submit(2)
        waiting = await rig.submit(2)
        n = rig.job(waiting).n
        log.clear()
        await rig.restart()
        assert log[:2] == ["loaded", "loaded"]
        assert sorted(log[2:6]) == sorted([f"new {jobid} {rig.job(jobid).n}", f"new {waiting} {n}"] * 2)
        assert log[6:] == ["flux-restart", "flux-restart", "priority", "priority"]
        rig.close()

    simulate(body)


def test_directives_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(EARLY)
    log: list[str] = []

    def rig_of(*plugins: Any, name: str) -> Rig:
        (tmp_path / name).mkdir()
        return Rig(tmp_path / name, config=Config(job_manager=JobManager(plugins=list(plugins))))

    async def body() -> None:
        load = PluginDirective(str(tmp_path / "early.py"), {"log": log})
        rig = rig_of(load, name="a")
        assert [p["name"] for p in rig.manager.tap.listing() if not p["builtin"]] == ["early"]
        said = rig.manager.tap.query("early")
        assert (said["jobs"], said["name"], said["holds"], said["conf"]) == (0, "mine", 0, {"log": log})
        rig.close()
        rig = rig_of(load, PluginDirective(remove="ear*"), name="b")
        assert rig.manager.registry.get("early") is None
        rig.close()
        with pytest.raises(ConfigError, match="no plugin named `nosuch`"):
            rig_of("nosuch", name="c")

    simulate(body)


def test_a_configured_plugin_that_was_loaded_anew_by_hand_keeps_what_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "tape.py"
    path.write_text("from leveret.plugins.hooks import Plugin\n\n\nclass Tape(Plugin):\n    pass\n")

    async def body() -> None:
        configured = [PluginDirective(str(path), {"rate": 1})]
        rig = Rig(tmp_path, config=Config(job_manager=JobManager(plugins=configured)))
        rig.manager.tap.load(str(path), {"rate": 2}, replace="tape")
        await rig.quiet()
        await rig.restart()
        assert rig.manager.tap.query("tape")["conf"] == {"rate": 2}
        assert rig.log.take_errors() == []
        rig.close()

    simulate(body)


def test_an_entry_point_is_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "site-packages" / "siteplugin-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: siteplugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[leveret.plugins]\nsite-early = siteplugin:Early\n")
    (info.parent / "siteplugin.py").write_text(EARLY)
    monkeypatch.syspath_prepend(str(info.parent))

    async def body() -> None:
        rig = Rig(tmp_path)
        log: list[str] = []
        assert rig.manager.tap.load("site-early", {"log": log}, remember=False) == "site-early"
        assert log == ["loaded"]
        rig.close()

    simulate(body)
    sys.modules.pop("siteplugin", None)


def test_config_may_refuse_the_load(tmp_path: Path) -> None:
    path = tmp_path / "picky.py"
    path.write_text(
        "from leveret.plugins.hooks import Plugin, Reject\n\n\nclass Picky(Plugin):\n"
        "    def config(self, config):\n        return Reject(f'needs {self.conf.get(\"what\")}', 'give it')\n"
    )

    async def body() -> None:
        rig = Rig(tmp_path)
        with pytest.raises(InvalidError, match="plugin `picky`: needs tape") as refused:
            rig.manager.tap.load(str(path), {"what": "tape"})
        assert refused.value.hint == "give it"
        assert rig.manager.registry.get("picky") is None
        rig.close()

    simulate(body)


# ---- open holds and their plugin --------------------------------------------------------------------

KEEPER = """\
import asyncio

from leveret.plugins.hooks import EpilogHold, PartHold, Plugin


class Keeper(Plugin):
    def state_cleanup(self, job):
        kind = EpilogHold if job.urgency == 1 else PartHold
        return kind("keep", work=self.keep(job, "begin"))

    async def keep(self, job, how):
        self.manager.log(f"{how} {job.id}")
        await asyncio.Event().wait()

    async def resume(self, job, hold):
        await self.keep(job, "resume")
"""


def keeper(tmp_path: Path) -> str:
    path = tmp_path / "keeper.py"
    path.write_text(KEEPER)
    return str(path)


def test_r15_removal_with_open_holds_is_refused_and_force_ends_them_as_failed(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        rig.manager.tap.load(keeper(tmp_path), {})
        jobid, site = await rig.submit(urgency=0), await rig.submit(urgency=1)
        await rig.cancel(jobid)
        await rig.run(site)
        with pytest.raises(ConflictError, match="open holds") as refused:
            rig.manager.tap.remove("keeper")
        assert "--force" in refused.value.hint
        rig.manager.tap.remove("keeper", UID, force=True)
        await rig.quiet()
        assert rig.story(jobid)[-4:] == ["give-up(keep)", "exception(part)", "part-finish(keep)", "clean"]
        assert rig.story(site)[-5:] == ["give-up(keep)", "exception(epilog)", "epilog-finish(keep)", "free", "clean"]
        assert rig.verdict(site).result == COMPLETED, "what the site owns is a warning"
        finish = next(e for e in rig.stored(jobid) if e.name == "part-finish")
        assert finish.get("status") == 256 and "keeper was removed" in finish.get("note")
        assert rig.manager.registry.get("keeper") is None
        rig.over()
        rig.close()

    simulate(body)


def test_a_reload_hands_open_holds_over(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        rig.manager.tap.load(keeper(tmp_path), {})
        jobid = await rig.submit(urgency=0)
        await rig.cancel(jobid)
        with pytest.raises(ConflictError, match="loaded already"):
            rig.manager.tap.load(keeper(tmp_path), {})
        old = rig.manager.registry.get("keeper")
        rig.manager.tap.load(keeper(tmp_path), {"new": 1}, replace="keep*")
        await rig.quiet()
        assert rig.manager.registry.get("keeper") is not old
        assert [str(line) for line in rig.log.lines if f"resume {jobid}" in str(line)]
        assert list(rig.job(jobid).holds) == ["part/keep"]
        rig.close()

    simulate(body)


@pytest.mark.parametrize("late", [False, True])
def test_a_plugin_that_is_gone_after_a_restart(tmp_path: Path, late: bool) -> None:
    """A user's hold ends as failed after the grace, by name; a site's stays, visibly; a late load takes both up."""

    async def body() -> None:
        rig = Rig(tmp_path)
        path = keeper(tmp_path)
        rig.manager.tap.load(path, {})
        user, site = await rig.submit(urgency=0), await rig.submit(urgency=1)
        await rig.cancel(user)
        await rig.run(site)
        Path(path).unlink()
        await rig.restart()
        assert list(rig.job(user).holds) == ["part/keep"] and list(rig.job(site).holds) == ["epilog/keep"]
        (hold,) = rig.manager.holds.listing(site)
        assert (hold["plugin"], hold["loaded"]) == ("keeper", False)
        if late:
            rig.manager.tap.load(keeper(tmp_path), {}, remember=False)
            await rig.quiet()
            assert len([line for line in rig.log.lines if "resume " in str(line)]) == 2
        rig.clock.advance(61)
        await rig.quiet()
        assert rig.job(user).done is not late
        assert list(rig.job(site).holds) == ["epilog/keep"]
        if not late:
            assert rig.story(user)[-3:] == ["exception(part)", "part-finish(keep)", "clean"]
            finish = next(e for e in rig.stored(user) if e.name == "part-finish")
            assert finish.get("note") == "keep: its plugin `keeper` is gone"
        rig.close()

    simulate(body)


# ---- deadlines, leases, giving up -------------------------------------------------------------------


def test_every_hold_with_work_has_a_deadline(tmp_path: Path) -> None:
    class Works(Plugin):
        def state_run(self, job: Job) -> Answers:
            return [
                PartHold("default", work=forever()),
                PartHold("own", work=forever(), deadline_s=5),
                EpilogHold("unlimited", work=forever(), deadline_s=math.inf),
                PartHold("without-work"),
            ]

    async def body() -> None:
        rig = Rig(tmp_path, [Works])
        jobid = await rig.submit()
        now = rig.job(jobid).t_run
        left = {h.name: h.deadline and round(h.deadline - now) for h in rig.job(jobid).holds.values()}
        assert left == {"default": 86400, "own": 5, "unlimited": None, "without-work": None}
        alarmed = [key for _, key in rig.manager.holds._alarms]
        assert alarmed == ["epilog/unlimited"]
        rig.clock.advance(1801)
        assert [line for line in rig.log.lines if "hold lasts long" in str(line) and "unlimited" in str(line)]
        assert [h["name"] for h in rig.manager.holds.listing() if h["overdue"]] == ["unlimited", "without-work"]
        rig.close()

    simulate(body)


@pytest.mark.parametrize("owner", ["user", "site"])
@pytest.mark.parametrize("crash", [False, True])
def test_a_lease_that_is_not_renewed_ends_the_hold_by_name(tmp_path: Path, owner: str, crash: bool) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit(urgency=0)
        holds = rig.manager.holds
        holds.open(jobid, "part", "tape", {"owner": owner}, lease_s=60)
        await rig.quiet()
        holds.open(jobid, "part", "tape", {"owner": owner}, lease_s=60)  # the answer was lost: it is asked again
        assert rig.story(jobid)[-1] == "part-start(tape)"

        async def pass_(seconds: float) -> None:
            rig.clock.advance(seconds)
            await rig.quiet()

        await pass_(50)
        assert rig.manager.holds.renew(jobid, "part/tape") == 60
        await pass_(50)
        assert "part/tape" in rig.job(jobid).holds
        if crash:
            await rig.restart()
            await pass_(50)
            assert "part/tape" in rig.job(jobid).holds, "after a restart it has a full period again"
            await pass_(11)
        else:
            await pass_(11)
        assert "part/tape" not in rig.job(jobid).holds
        assert rig.job(jobid).done is (owner == "user")
        finish = next(e for e in rig.stored(jobid) if e.name == "part-finish")
        assert finish.get("note") == "tape: the lease of 60s has expired" and finish.get("status") == 142 << 8
        exception = next(e for e in rig.stored(jobid) if e.name == "exception")
        assert exception.get("severity") == (0 if owner == "user" else 2)
        assert rig.manager.entries == {} or rig.manager.entries[jobid].leases == {}
        assert rig.store.kv_of_active("hold/") == []
        rig.close()

    simulate(body)


@pytest.mark.parametrize(
    ("kind", "fatal"), [("part", True), ("prolog", True), ("epilog", False), ("dependency", False)]
)
@pytest.mark.parametrize("door", ["give-up", "post-job-event"])
def test_a_give_up_says_who_and_ends_the_hold(tmp_path: Path, kind: str, fatal: bool, door: str) -> None:
    class Taker(Plugin):
        def take(self, job: Job) -> Answers:
            return {"part": PartHold, "prolog": PrologHold, "epilog": EpilogHold, "dependency": DependencyHold}[kind](
                "stuck", work=forever()
            )

        def state_depend(self, job: Job) -> Answers:
            return self.take(job) if kind == "dependency" else None

        def state_run(self, job: Job) -> Answers:
            return self.take(job) if kind in ("part", "prolog") else None

        def event_finish(self, job: Job, event: Event) -> Answers:
            return self.take(job) if kind == "epilog" else None

    async def body() -> None:
        rig = Rig(tmp_path, [Taker])
        jobid = await rig.submit()
        if kind in ("part", "epilog"):
            await rig.run(jobid)
        assert list(rig.job(jobid).holds) == [f"{kind}/stuck"]
        if door == "give-up":
            event = rig.manager.holds.give_up(jobid, f"{kind}/stuck", 4711, "robot down")
            assert "taker" in event["left"] and "stopped" in event["left"]
        else:
            name = "dependency-remove" if kind == "dependency" else f"{kind}-finish"
            with pytest.raises(EventError):
                userevents.post_event(rig.manager, jobid, name, {"description": "other", "status": 15}, 4711)
            userevents.post_event(rig.manager, jobid, name, {"description": "stuck", "status": 15}, 4711)
        await rig.quiet()
        given = next(e for e in rig.stored(jobid) if e.name == "give-up")
        assert given.get("userid") == 4711 and given.get("kind") == kind
        exception = next(e for e in rig.stored(jobid) if e.name == "exception")
        assert exception.get("userid") == 4711 and (exception.get("severity") == 0) is fatal
        if kind == "dependency":
            await rig.run(jobid)  # it is waived, and the job goes on
        assert rig.verdict(jobid).result == (FAILED if fatal else COMPLETED)
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("kind", ["prolog", "part"])
def test_r17_a_holder_without_deadline_that_does_not_answer_is_abandoned_by_name(
    tmp_path: Path, kind: str, crash: bool
) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, config=Config(job_manager=JobManager(hold_deadline="100s")))
        jobid = await rig.submit(urgency=0)
        rig.manager.holds.open(jobid, kind, "never", {} if kind == "prolog" else {"blocks": ["start"], "owner": "site"})
        await rig.cancel(jobid)
        assert list(rig.job(jobid).holds) == [f"{kind}/never"]
        rig.clock.advance(60)
        if crash:
            await rig.restart()
            rig.clock.advance(60)
        await rig.quiet()
        assert list(rig.job(jobid).holds) == [f"{kind}/never"]
        rig.clock.advance(41)
        await rig.quiet()
        assert rig.verdict(jobid).result == CANCELED
        said = [e.get("note") for e in rig.stored(jobid) if e.name == "exception"]
        assert said[1:] == ["never: the deadline has passed"]
        rig.over()
        rig.close()

    simulate(body)


def test_giving_up_what_is_not_open_changes_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit(urgency=0)
        before = rig.story(jobid)
        with pytest.raises(EventError, match="no hold `x` is open"):
            rig.manager.holds.give_up(jobid, "part/x", UID)
        with pytest.raises(NotFoundError):
            rig.manager.holds.give_up(12345, "part/x", UID)
        assert rig.story(jobid) == before
        rig.close()

    simulate(body)


def test_r11_a_finish_of_one_hold_never_lets_another_go(tmp_path: Path) -> None:
    class Two(Plugin):
        def state_cleanup(self, job: Job) -> Answers:
            return [EpilogHold("A"), EpilogHold("B")]

        def event_memo(self, job: Job, event: Event) -> Answers:
            return [Finish("epilog", "A"), Finish("epilog", "A"), Finish("epilog", "C")]

    async def body() -> None:
        rig = Rig(tmp_path, [Two])
        jobid = await rig.submit(urgency=0)
        await rig.cancel(jobid)
        userevents.memo(rig.manager, jobid, {"let": "go"}, False)
        await rig.quiet()
        assert list(rig.job(jobid).holds) == ["epilog/B"]
        errors = [str(line) for line in rig.log.lines if "event refused" in str(line)]
        assert len(errors) == 2 and "`A` was closed already" in errors[0] and "`C` is not open" in errors[1]
        port(rig, "two").finish(jobid, "B")
        await rig.quiet()
        assert rig.verdict(jobid).result == CANCELED
        rig.over()
        rig.close()

    simulate(body)


def test_resume_gets_the_very_hold(tmp_path: Path) -> None:
    given: list[tuple[str, str]] = []

    class Resumes(Plugin):
        def state_cleanup(self, job: Job) -> Answers:
            return [EpilogHold("one", work=forever()), PartHold("two", work=forever(), owner="site")]

        async def resume(self, job: Job, hold: Hold) -> int:
            given.append((hold.kind, hold.name))
            return 0

    async def body() -> None:
        rig = Rig(tmp_path, [Resumes])
        jobid = await rig.submit(urgency=0)
        await rig.cancel(jobid)
        await rig.restart()
        assert given == [("epilog", "one"), ("part", "two")]
        assert rig.verdict(jobid).result == CANCELED
        rig.over()
        rig.close()

    simulate(body)
