"""Record what this version of Leveret writes, for later versions to read: tests/histories/VERSION/.

    python tools/record_history.py [DIRECTORY]

Runs an instance of two nodes through one job of every kind, kills its daemon while some are active, and keeps

    NAME.jsonl, NAME.exec.jsonl   eventlogs, one job a file
    state.sql                     the whole database as SQL, with jobs that were pending and running at the kill
    expected.json                 what the doors said of each job: {NAME: {id, state, result, exit_code, …}}

A released version's directory is never made again: a change that cannot read it is a bug (tests/histories).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from leveret import __version__
from leveret.client import Client
from leveret.core import jobspec

ROOT = Path(__file__).parent.parent
#: of a record: what every later version must say as well
KEPT = ("id", "state", "result", "exit_code", "waitstatus", "urgency", "priority", "ntasks", "nnodes", "ranks", "name")
CONFIG = """\
[job-manager.prolog]
command = ["/bin/true"]
[job-manager.epilog]
command = ["/bin/true"]
"""


def spec(*command: str, **options: Any) -> dict[str, Any]:
    return jobspec.build(list(command), cwd="/", environment={"PATH": "/usr/bin:/bin"}, **options)


def start(base: Path) -> subprocess.Popen[bytes]:
    read, write = os.pipe()
    (base / "leveret.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "leveret.daemon", "--statedir", str(base / "state"), "--socket", str(base / "s")]
    command += ["--size", "2", "--config", str(base / "leveret.toml"), "--ready-fd", str(write)]
    daemon = subprocess.Popen(command, pass_fds=[write], stdin=subprocess.DEVNULL)
    os.close(write)
    with os.fdopen(read) as ready:
        if (said := ready.readline().strip()) != "ok":
            raise SystemExit(f"the daemon did not start: {said}")
    return daemon


def run_jobs(client: Client) -> dict[str, int]:
    """One job of every kind, all over; and some that stay active. Names to ids."""
    jobs: dict[str, int] = {}

    def submit(name: str, *command: str, urgency: int = 16, flags: tuple[str, ...] = (), **options: Any) -> int:
        jobs[name] = client.submit(spec(*command, **options), urgency, flags)
        return jobs[name]

    def waits(jobid: int, event: str) -> int:
        for line in client.events(jobid, ["eventlog"], follow=True):
            if "event" in line and line["event"]["name"] == event:
                return jobid
        raise SystemExit(f"{jobid} has no {event}")

    first = submit("ok", "echo", "hello")
    client.wait(first)
    client.wait(submit("exit3", "sh", "-c", "exit 3"))
    client.wait(submit("notfound", "/nonexistent/program"))
    client.wait(submit("sigkill", "sh", "-c", "kill -9 $$"))
    client.wait(submit("timeout", "sleep", "100", duration_s=0.5))
    client.wait(submit("two-nodes", "echo", "x", nnodes=2))
    client.wait(submit("debug-waitable", "true", flags=("debug", "waitable")))
    client.cancel(waits(submit("cancel-running", "sleep", "100"), "start"), "as asked")
    client.cancel(submit("cancel-held", "true", urgency=0))
    submit("held-released", "true", urgency=0)
    client.memo(jobs["held-released"], {"stage": 2, "input": {"file": "a.nc"}})
    client.post_event(jobs["held-released"], "site.note", {"any": ["thing"], "of": None})
    client.urgency(jobs["held-released"], 20)
    submit("raised", "sleep", "100")
    waits(jobs["raised"], "start")
    client.raise_(jobs["raised"], "site", 3, "a warning")
    client.raise_(jobs["raised"], "site", 0, "and the end")
    submit("user-part", "true", urgency=0)
    client.open_hold(jobs["user-part"], "post-processing", owner="user")
    client.urgency(jobs["user-part"], 16)
    waits(jobs["user-part"], "free")
    client.finish_hold(jobs["user-part"], "post-processing", 256, note="no such luck")
    for name in ("cancel-running", "cancel-held", "held-released", "raised", "user-part"):
        client.wait(jobs[name])
    depends = spec("true")
    depends["attributes"]["system"]["dependencies"] = [{"scheme": "afterok", "value": str(first)}]
    jobs["afterok"] = client.submit(depends)
    client.wait(jobs["afterok"])
    # these are active at the end
    waits(submit("active-running", "sleep", "1000"), "start")
    client.memo(jobs["active-running"], {"kept": True})
    submit("active-held", "echo", "after all", urgency=0)
    depends["attributes"]["system"]["dependencies"] = [{"scheme": "afterany", "value": str(jobs["active-held"])}]
    jobs["active-dependent"] = client.submit(depends)
    return jobs


def main() -> int:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests" / "histories" / __version__
    if target.exists():
        raise SystemExit(f"{target} exists already: what a version has written is recorded once")
    with tempfile.TemporaryDirectory(prefix="leveret-history-") as name:
        base = Path(name)
        daemon = start(base)
        client = Client(f"local://{base}/s", start=False)
        out = base / "out"
        out.mkdir()
        expected: dict[str, dict[str, Any]] = {}
        for job, jobid in run_jobs(client).items():
            record = client.job(jobid)
            expected[job] = {key: record.get(key) for key in KEPT}
            expected[job]["cause"] = (record.get("cause") or {}).get("type")
            expected[job]["holds"] = [hold["name"] for hold in record["holds"]]
            (out / f"{job}.jsonl").write_text(client.key(jobid, "eventlog"))
            if record.get("t_run") and record["done"]:
                (out / f"{job}.exec.jsonl").write_text(client.key(jobid, "guest.exec.eventlog"))
        client.close()
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
        db = sqlite3.connect(base / "state" / "leveret.db")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        for table, column in (("kv", "value"), ("event", "line"), ("guest", "lines")):
            db.execute(
                f"UPDATE {table} SET {column}=CAST(replace(CAST({column} AS TEXT), ?, '/run/leveret') AS BLOB) "
                f"WHERE instr({column}, CAST(? AS BLOB))",
                (str(base), str(base)),
            )
        text = "\n".join(db.iterdump())
        db.rollback()
        db.close()
        for private in (str(base), os.uname().nodename + '"'):
            if private in text or private.encode().hex().upper() in text.upper():
                print(f"warning: `{private}` is in the dump", file=sys.stderr)
        (out / "state.sql").write_text(f"{text}\nPRAGMA user_version={version};\n")
        (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(out, target)
        daemon = start(base)  # in order, with its helpers and what they run
        with Client(f"local://{base}/s", start=False) as client:
            client.shutdown(timeout_s=10)
        daemon.wait()
        time.sleep(0.5)  # the helpers are on their way out of the directory
    print(f"{len(expected)} jobs in {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
