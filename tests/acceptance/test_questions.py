"""What can be asked of a job: keys, eventlogs, events to wait for, values kept with it, listings, dependencies."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from harness import NORMAL, WATCHDOG_S, Instance, f58, words


def test_info_keys(shared: Instance) -> None:
    jobid = shared.leveret("submit", "--wait", "-t", "1m", "--env=SECRET=1", "echo", "hi", check=0).out.strip()

    def info(key: str, *options: str) -> str:
        return str(shared.leveret("job", "info", *options, jobid, key, check=0).out)

    spec = json.loads(info("jobspec"))
    assert set(spec) == {"attributes", "resources", "tasks", "version"} and spec["version"] == 1
    assert spec["attributes"]["system"]["duration"] == 60
    assert "environment" not in spec["attributes"]["system"]
    original = json.loads(info("jobspec", "--original"))
    assert original["attributes"]["system"]["environment"]["SECRET"] == "1"
    r = json.loads(info("R"))
    assert r["execution"]["R_lite"] == [{"rank": "0", "children": {"core": "0"}}]
    assert r["execution"]["expiration"] - r["execution"]["starttime"] == 60
    assert info("J").count(".") == 2
    for key, names in (
        ("eventlog", NORMAL),
        (
            "guest.exec.eventlog",
            words("init starting shell.init shell.start shell.task-exit shell-exit complete done"),
        ),
    ):
        assert [json.loads(text)["name"] for text in info(key).splitlines()] == names
    for key in ("guest.output", "guest.input"):
        assert json.loads(info(key).splitlines()[0])["name"] == "header"
    assert '"data":"hi\\n"' in info("guest.output")
    done = shared.leveret("job", "info", jobid, "nosuch")
    assert (done.code, done.err) == (1, "leveret-job: nosuch: key not found\n")
    assert shared.leveret("job", "info", jobid).code != 0


def test_eventlog_formats_and_paths(shared: Instance) -> None:
    jobid = shared.leveret("submit", "--wait", "echo", "hi", check=0).out.strip()
    text = shared.leveret("job", "eventlog", jobid, check=0).out.splitlines()
    assert [line.split()[1] for line in text] == NORMAL
    assert re.fullmatch(r"\d+\.\d+ finish status=0", text[6])
    as_json = [json.loads(line) for line in shared.leveret("job", "eventlog", "-f", "json", jobid).out.splitlines()]
    assert as_json == shared.eventlog(jobid)
    offsets = [
        float(line.split()[0]) for line in shared.leveret("job", "eventlog", "-T", "offset", jobid).out.splitlines()
    ]
    assert offsets[0] == 0.0 and offsets == sorted(offsets)
    for path, first in (("exec", "init"), ("guest.exec.eventlog", "init"), ("output", "header"), ("input", "header")):
        assert shared.leveret("job", "eventlog", "-p", path, jobid, check=0).out.split()[1] == first
    done = shared.leveret("job", "eventlog", "-p", "nosuch", jobid)
    assert (done.code, done.err) == (1, "leveret-job: eventlog path nosuch not found\n")
    followed = shared.leveret("job", "eventlog", "-F", shared.submit("true"), check=0).out.splitlines()
    assert [line.split()[1] for line in followed] == NORMAL


def test_wait_event(shared: Instance) -> None:
    running = shared.submit("sh", "-c", "echo ready; exec sleep 1000")

    def wait_event(*args: str) -> tuple[int, str, str]:
        done = shared.leveret("job", "wait-event", *args)
        return done.code, done.out, done.err

    assert wait_event(running, "start")[0] == 0
    code, out, _ = wait_event("-p", "output", "-m", "stream=stdout", running, "data")
    assert code == 0 and out.split(" ", 1)[1] == 'data stream="stdout" rank="0" data="ready\\n"\n'
    assert wait_event("-t", "0.2", running, "clean") == (1, "", "leveret-job: wait-event timeout on event 'clean'\n")
    code, _, err = wait_event("-t", "foo", running, "clean")
    assert code == 1 and "Invalid argument for option 'timeout': 'foo'" in err
    shared.leveret("job", "kill", running, check=0)
    code, out, _ = wait_event("-v", "-m", "status=36608", running, "finish")
    assert code == 0 and [line.split()[1] for line in out.splitlines()] == NORMAL[:7]
    assert wait_event(running, "nosuch") == (1, "", "leveret-job: event 'nosuch' never received\n")
    assert wait_event("-m", "status=1", running, "finish")[0] == 1
    assert wait_event("-p", "nosuch", running, "start") == (1, "", "leveret-job: eventlog path nosuch not found\n")
    assert wait_event("xyz", "start")[2].splitlines()[0] == 'leveret-job: error parsing jobid: "xyz"'
    assert wait_event("-q", running, "clean") == (0, "", "")
    assert wait_event("-p", "exec", running, "shell.init")[0] == 0
    assert shared.leveret("submit", "--wait-event=exec.shell.start", "true").code == 0
    assert shared.leveret("submit", "--wait-event=nosuch", "true").code == 0  # the job just ends


def test_values_kept_with_a_job(shared: Instance) -> None:
    jobid = shared.submit("--urgency=0", "true")
    number = shared.record(jobid)["id"]
    target = f"/v1/jobs/{number}/keys/"
    value = '{"step": 3, "ƒ": [1, 2]}'
    assert shared.http("PUT", target + "guest.checkpoint", value.encode()) == (200, {})
    shared.client.put_key(jobid, "notes.first", "one\ntwo\n")
    assert shared.http("GET", target + "guest.checkpoint") == (200, value)
    assert shared.leveret("job", "info", jobid, "guest.notes.first", check=0).out == "one\ntwo\n"
    shared.client.put_key(jobid, "notes.first", "three")
    assert shared.client.key(jobid, "guest.notes.first") == "three"
    for key in ("R", "jobspec", "eventlog", "guest.output", "guest.exec.eventlog", "guest.input", "other.x", "guest."):
        status, body = shared.http("PUT", target + key, b"x")
        assert status in (400, 404) and body["code"] in ("invalid", "not-found"), key
    assert shared.http("PUT", target + "guest.big", b"x" * ((1 << 20) + 1))[0] == 400
    assert shared.http("PUT", "/v1/jobs/1234/keys/guest.x", b"x")[0] == 404
    assert shared.names(jobid) == words("submit validate depend priority")  # no events
    shared.client.cancel(jobid)
    shared.wait(jobid)
    assert shared.client.key(jobid, "guest.checkpoint") == value  # it stays with the job
    assert shared.http("PUT", target + "guest.late", b"x")[0] == 409


def test_values_survive_a_killed_daemon(instance: Instance) -> None:
    jobid = instance.submit("--urgency=0", "true")
    instance.client.put_key(jobid, "checkpoint", "42")
    instance.crash()
    assert instance.client.key(jobid, "guest.checkpoint") == "42"


def test_ids_in_every_spelling_mean_the_same_job(shared: Instance) -> None:
    jobid = shared.submit("true")
    number = shared.wait(jobid)["id"]
    spellings = [jobid, jobid.replace("ƒ", "f"), str(number)]
    for form in ("hex", "dothex", "kvs", "words", "f58plain"):
        spellings.append(shared.leveret("job", "id", f"--to={form}", str(number), check=0).out.strip())
    assert len(set(spellings)) == 7
    for spelling in spellings:
        assert shared.leveret("job", "status", spelling).code == 0, spelling
        assert shared.leveret("job", "id", "--to=dec", spelling).out == f"{number}\n"
    for spelling in spellings[1:]:
        assert shared.http("GET", f"/v1/jobs/{spelling}")[1]["id"] == number, spelling


def test_r80_ids_round_trip_under_an_ascii_locale(shared: Instance) -> None:
    env = {**shared.env, "LC_ALL": "C"}
    shared.env, before = env, shared.env
    try:
        jobid = shared.submit("echo", "hi")
        assert jobid.isascii() and jobid.startswith("f")
        assert shared.attach(jobid).out == "hi\n"
    finally:
        shared.env = before
    assert shared.leveret("jobs", "-ano", "{id.f58}", jobid).out.strip() == f58(jobid)


def test_listings(shared: Instance) -> None:
    good = shared.submit("--job-name=good", "true")
    bad = shared.submit("--job-name=bad", "sh", "-c", "exit 2")
    held = shared.submit("--job-name=held", "--urgency=0", "true")
    shared.wait(good)
    shared.wait(bad)

    def ids(*options: str) -> set[str]:
        return set(shared.leveret("jobs", "--ids", *options, check=0).out.split())

    assert held in ids() and not {good, bad} & ids()
    assert {good, bad, held} <= ids("-a")
    assert good in ids("-f", "completed") and not {bad, held} & ids("-f", "completed")
    assert bad in ids("-f", "failed") and not {good, held} & ids("-f", "failed")
    assert held in ids("-f", "pending") and not {good, bad} & ids("-f", "pending")
    assert ids("-a", "--name=bad") == {bad}
    (job,) = json.loads(shared.leveret("jobs", "-a", "--json", "--name=bad", check=0).out)["jobs"]
    assert (job["result"], job["returncode"], job["success"], job["waitstatus"]) == ("FAILED", 2, False, 512)
    assert job["exception"] == {"occurred": False} and job["jobid"] == bad
    unknown = shared.leveret("jobs", "1234")
    assert (unknown.code, unknown.err) == (1, "JobID 1234 unknown\n")
    assert shared.leveret("job", "last", check=0).out.strip() == held


def test_dependencies_of_every_scheme(shared: Instance) -> None:
    first = shared.submit("--urgency=0", "sh", "-c", "exit 1")
    dependents = {
        scheme: shared.submit(f"--dependency={scheme}:{first}", "echo", scheme)
        for scheme in ("afterok", "afternotok", "afterany", "afterstart")
    }
    names = {"afterok": "success", "afternotok": "failure", "afterany": "finish", "afterstart": "start"}
    for scheme, jobid in dependents.items():
        form = "{state} {dependencies}"
        assert shared.leveret("jobs", "-no", form, jobid).out == f"DEPEND after-{names[scheme]}={first}\n"
        assert shared.names(jobid) == ["submit", "dependency-add", "validate"]
    shared.client.urgency(first, 16)
    ends = {scheme: shared.attach(jobid) for scheme, jobid in dependents.items()}
    assert {scheme: end.code for scheme, end in ends.items()} == {
        "afterok": 1,
        "afternotok": 0,
        "afterany": 0,
        "afterstart": 0,
    }
    assert f"type=dependency severity=0 dependency after-success={first} can never be satisfied" in ends["afterok"].err
    assert shared.names(dependents["afterok"])[-2:] == ["exception", "clean"]
    # of a job that is over
    refused = shared.leveret("submit", f"--dependency=afterok:{first}", "true")
    assert (refused.code, refused.err) == (
        1,
        f"[Errno 22] dependency: afterok: job {first} failed or was canceled\n",
    )
    later = shared.submit(f"--dependency=afternotok:{first}", "true")
    shared.wait(later)
    assert shared.names(later)[:4] == ["submit", "dependency-add", "dependency-remove", "validate"]
    for uri, why in (
        ("afterok:1234", "dependency: afterok: id 1234: job not found"),
        ("afterok:xxx", 'dependency: afterok: "xxx" is not a valid jobid'),
        ("nosuch:1", 'dependency scheme "nosuch" not supported'),
    ):
        done = shared.leveret("submit", f"--dependency={uri}", "true")
        assert (done.code, done.err.splitlines()[0]) == (1, f"[Errno 22] {why}")


def test_a_chain_of_dependents_falls_with_its_first(shared: Instance) -> None:
    a = shared.submit("--urgency=0", "true")
    b = shared.submit(f"--dependency=afterok:{a}", "true")
    c = shared.submit(f"--dependency=afterok:{b}", "true")
    shared.client.cancel(a)
    assert shared.wait(c)["result"] == "FAILED"
    assert shared.contexts(c, "exception")[0]["note"] == f"dependency after-success={b} job never started"


def test_r72_one_bad_submission_does_not_spoil_the_others(shared: Instance) -> None:
    from leveret.core import jobspec
    from leveret.errors import LeveretError

    spec = jobspec.build(["true"], cwd="/", environment={})
    bad: dict[str, Any] = {**spec, "version": 99}
    jobs = [{"jobspec": bad if number == 7 else spec, "urgency": 16, "flags": []} for number in range(20)]
    results = shared.client.submit_many(jobs)
    assert [number for number, result in enumerate(results) if isinstance(result, LeveretError)] == [7]
    good = [result for result in results if isinstance(result, int)]
    ends = list(shared.client.wait_many(good))
    assert len(ends) == 19 and all(end["job"]["success"] for end in ends)

    async def many() -> list[str]:
        from leveret.aclient import AsyncClient

        async with AsyncClient(shared.uri) as client:
            ids = [await client.submit(spec) for _ in range(5)]
            records = await asyncio.wait_for(asyncio.gather(*(client.wait(jobid) for jobid in ids)), WATCHDOG_S)
            return [record["result"] for record in records]

    assert asyncio.run(many()) == ["COMPLETED"] * 5


def test_a_stream_resumes_from_any_token_with_no_gap_and_no_repetition(shared: Instance) -> None:
    jobid = shared.submit("sh", "-c", "seq 1 20000")  # in part kept beside the database
    number = shared.wait(jobid)["id"]

    def lines(query: str) -> list[dict[str, Any]]:
        status, text = shared.http("GET", f"/v1/jobs/{number}/events?{query}")
        assert status == 200
        return [json.loads(line) for line in text.splitlines() if line]

    for path in ("eventlog", "output", "exec"):
        whole = lines(f"path={path}")
        assert whole[-1]["end"] is True and whole[-1]["job"]["result"] == "COMPLETED"
        events = whole[:-1]
        for at in range(0, len(events), max(1, len(events) // 7)):
            rest = lines(f"path={path}@{events[at]['id']}")
            assert rest[:-1] == events[at + 1 :], (path, at)
