"""`leveret demo --rabbit`: a job on two nodes whose data is on near-node storage of its own.

The same work as the plain demo, with `#DW` directives: each node gets its storage and a copy of the input, sorts its half
there, and what it leaves is copied out before the job is over. The seven states of the storage are shown with their times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from leveret.cli import envrules, output
from leveret.cli.demo import FILES, LINES, TASKS, Demo
from leveret.client import Client
from leveret.core import jobspec
from leveret.errors import NotFoundError

NODES = 2
STATES = ("Proposal", "Setup", "DataIn", "PreRun", "PostRun", "DataOut", "Teardown")
SCRIPT = """
cd "$DW_JOB_demo" && mkdir sorted
echo "task $FLUX_TASK_RANK sorts its half on storage of its own, $DW_JOB_demo"
cat input/part-*"$FLUX_TASK_RANK".txt | sort -n > sorted/half-"$FLUX_TASK_RANK".txt
wc -l < sorted/half-"$FLUX_TASK_RANK".txt | { read -r n; echo "task $FLUX_TASK_RANK sorted $n lines"; }
"""


def has_nodes() -> bool:
    """Whether the instance that is addressed has enough nodes."""
    with Client(start=False, patience_s=0.0) as client:
        return len(client.status()["helpers"]) >= NODES


def in_an_instance(as_json: bool, keep: bool) -> int:
    """The demo within an instance of two nodes that is started for it."""
    own = [sys.argv[0]] if os.access(sys.argv[0], os.X_OK) else [sys.executable, "-m", "leveret"]
    flags = ["--json"] * as_json + ["--keep"] * keep
    return subprocess.call([*own, "start", "-s", str(NODES), *own, "demo", "--rabbit", *flags])


class RabbitDemo(Demo):
    def run(self) -> int:
        size = self.make_input()
        directives = [
            "#DW jobdw type=xfs capacity=64MiB name=demo",
            f"#DW copy_in source={self.directory}/input destination=$DW_JOB_demo/",
            f"#DW copy_out source=$DW_JOB_demo/sorted/ destination={self.directory}/results/",
        ]
        self.say(f"In {self.directory}: input/ holds {FILES} files, {size / 1e6:.1f} MB.")
        self.say(f"The job: {NODES} nodes, one task each, and these directives:")
        for text in directives:
            self.say(f"  {text}")
        self.say()
        spec = jobspec.build(
            ["sh", "-c", SCRIPT],
            ntasks=TASKS,
            nnodes=NODES,
            name="demo",
            cwd=self.directory,
            environment=envrules.inherited(),
        )
        spec["attributes"]["system"]["dw"] = directives
        with Client() as client:
            jobid = client.submit(spec)
            self.say(f"job {output.f58(jobid)}")
            job = self.follow(client, jobid)
            times = self.times(client, jobid)
        results = self.results()
        if self.as_json:
            answer = {"job": job, "events": self.events, "results": results, "directory": self.directory}
            output.json_data({**answer, "timings": times}, pretty=output.is_terminal(1))
        else:
            self.say()
            self.say("Its storage went through:")
            for state in STATES:
                self.say(f"  {state:<9} {times.get(state, '-')}")
            self.show(job, results)
        complete = sum(item["lines"] for item in results) == FILES * LINES
        return int(job.get("exit_code") or 0) or int(not complete or len(times) != len(STATES))

    def times(self, client: Client, jobid: int) -> dict[str, str]:
        """State of the storage → the time that it took."""
        found = {}
        for state in STATES:
            try:
                found[state] = str(json.loads(client.key(jobid, f"rabbit_{state.lower()}_timing")))
            except NotFoundError:
                continue
        return found

    def results(self) -> list[dict[str, Any]]:
        """What was copied out, with sizes and lines."""
        found = []
        base = os.path.join(self.directory, "results")
        for folder, _, names in sorted(os.walk(base)):
            for name in sorted(names):
                path = os.path.join(folder, name)
                with open(path, "rb") as lines:
                    data = lines.read()
                shown = os.path.relpath(path, self.directory)
                found.append({"path": shown, "bytes": len(data), "lines": data.count(b"\n")})
        return found
