"""`leveret demo`: a whole job with all of its parts, on the embedded default instance.

A directory of a few megabytes is staged in, two tasks each sort their half of it, the result is staged out, and
the files are there the moment the job is clean.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from typing import Any

import click

from leveret.cli import envrules, output
from leveret.cli.attach import progress_text
from leveret.cli.base import Command
from leveret.cli.eventfmt import EventFormat
from leveret.cli.printer import Printer
from leveret.client import Client
from leveret.core import jobspec
from leveret.errors import LeveretError, UnreachableError

TASKS = 2
FILES = 4
LINES = 70_000
#: what each task does: sort its half of the files that were staged in
SCRIPT = """
mkdir -p work/sorted
echo "task $FLUX_TASK_RANK of $FLUX_JOB_SIZE sorts its half on $(uname -n)"
cat work/input/part-*"$FLUX_TASK_RANK".txt | sort -n > work/sorted/half-"$FLUX_TASK_RANK".txt
wc -l < work/sorted/half-"$FLUX_TASK_RANK".txt | { read -r n; echo "task $FLUX_TASK_RANK sorted $n lines"; }
"""


@click.command(
    "demo",
    cls=Command,
    examples=(
        ("leveret demo --keep", "and look at the files afterwards"),
        ("leveret demo --rabbit", "the same with `#DW` directives, on two nodes with storage of their own"),
    ),
)
@click.option("--rabbit", is_flag=True, help="On two nodes with storage of their own, by `#DW` directives.")
@click.option("--json", "as_json", is_flag=True, help="{job, events, results, directory} at the end, and nothing else.")
@click.option("--keep", is_flag=True, help="Keep the files, and the instance if it was started for this.")
def demo(as_json: bool, keep: bool, rabbit: bool) -> int:
    """Run a job with data staged in, two tasks, and data staged out, and show each part as it happens."""
    running = is_running()
    kind = Demo
    if rabbit:
        from leveret.cli.rabbit_demo import RabbitDemo, has_nodes, in_an_instance

        if not running or not has_nodes():
            return in_an_instance(as_json, keep)
        kind = RabbitDemo
    directory = working_directory()
    try:
        return kind(directory, as_json, keep).run()
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
            if not running:
                end_instance(as_json)


def is_running() -> bool:
    try:
        with Client(start=False, patience_s=0.0) as client:
            client.status()
    except UnreachableError:
        return False
    return True


def end_instance(quiet: bool) -> None:
    """Shut down the instance that was started for the demo."""
    from leveret.cli.manage import shutdown

    try:
        shutdown.callback("10s", False, True)  # type: ignore[misc]
    except LeveretError as failure:
        output.error(failure)
    else:
        if not quiet:
            output.data("The instance that was started for this has been shut down.")


def working_directory() -> str:
    """A new directory in the current one, else in $TMPDIR."""
    try:
        return tempfile.mkdtemp(prefix="leveret-demo-", dir=os.getcwd())
    except OSError:
        return tempfile.mkdtemp(prefix="leveret-demo-")


class Demo:
    def __init__(self, directory: str, as_json: bool, keep: bool) -> None:
        self.directory = directory
        self.as_json = as_json
        self.keep = keep
        self.events: list[dict[str, Any]] = []
        self._last = ""
        self._said = 0.0

    def say(self, text: str = "") -> None:
        if not self.as_json:
            output.data(text)

    def run(self) -> int:
        size = self.make_input()
        self.say(f"In {self.directory}: input/ holds {FILES} files, {size / 1e6:.1f} MB.")
        self.say(f"The job: input/ -> work/input (stage-in), {TASKS} tasks sort, work/sorted/ -> results (stage-out).")
        self.say()
        spec = jobspec.build(
            ["sh", "-c", SCRIPT], ntasks=TASKS, name="demo", cwd=self.directory, environment=envrules.inherited()
        )
        spec["attributes"]["system"]["staging"] = {
            "in": [{"src": "input/", "dst": "work/input"}],
            "out": [{"src": "work/sorted/", "dst": "results"}],
        }
        with Client() as client:
            jobid = client.submit(spec)
            self.say(f"leveret run -n{TASKS} --stage-in input/:work/input --stage-out work/sorted/:results sh -c …")
            self.say(f"job {output.f58(jobid)}")
            job = self.follow(client, jobid)
        results = self.results()
        if self.as_json:
            answer = {"job": job, "events": self.events, "results": results, "directory": self.directory}
            output.json_data(answer, pretty=output.is_terminal(1))
        else:
            self.show(job, results)
        complete = sum(item["lines"] for item in results) == FILES * LINES
        return int(job.get("exit_code") or 0) or int(not complete)

    def make_input(self) -> int:
        """Files of numbers in random order. Returns their size in bytes."""
        os.mkdir(os.path.join(self.directory, "input"))
        numbers, size = random.Random(2), 0
        for index in range(FILES):
            text = "".join(f"{numbers.randrange(10**12)}\n" for _ in range(LINES))
            name = f"part-{index // TASKS}{index % TASKS}.txt"
            with open(os.path.join(self.directory, "input", name), "w", encoding="ascii") as out:
                size += out.write(text)
        return size

    def follow(self, client: Client, jobid: int) -> dict[str, Any]:
        """Show state, holders, progress and output as they come, until the job is clean. Returns its record."""
        printer = Printer(jobid, label=True)
        line = output.StatusLine(output.is_terminal(2) and not self.as_json)
        printer.status = line
        for record in client.events(jobid, ["eventlog", "output"], follow=True, status=True):
            if record.get("end"):
                printer.end_of_output()
                line.show("")
                return dict(record["job"])
            if "status" in record:
                self.show_status(record["status"], line)
            elif record.get("path") == "eventlog":
                self.events.append(record["event"])
                self.show_event(record["event"], printer, line)
            elif "event" in record and not self.as_json:
                printer.output_event(record["event"])
                printer.flush()
        raise UnreachableError("the job's stream ended early")

    def show_status(self, status: dict[str, Any], line: output.StatusLine) -> None:
        """On a terminal a line that is rewritten, else a line per change of what is waited for."""
        if self.as_json:
            return
        text = f"{status.get('state')}"
        if status.get("waiting_for"):
            text += f": waiting for {status['waiting_for']}"
        progress = progress_text(status.get("progress"))
        if line.enabled:
            line.show(f"  {text} {progress}".rstrip())
        elif text != self._last or (progress and time.monotonic() - self._said > 0.5):
            self._last, self._said = text, time.monotonic()
            self.say(f"  [{text}{' ' if progress else ''}{progress}]")

    def show_event(self, event: dict[str, Any], printer: Printer, line: output.StatusLine) -> None:
        """The parts' beginnings and ends, in words."""
        if printer.t_submit is None:
            printer.t_submit = event["timestamp"]
        context = event.get("context") or {}
        words = {
            "alloc": "resources are there",
            "part-start": f"{context.get('description')} begins",
            "part-finish": f"{context.get('description')} is over: {context.get('note') or 'status'}"
            + ("" if context.get("note") else f" {context.get('status')}"),
            "start": "the tasks start",
            "finish": "the tasks are over",
            "free": "the resources are free again",
            "clean": "the job is clean: all of its parts are over",
            "exception": f"exception {context.get('type')}: {context.get('note')}",
        }
        text = words.get(event["name"])
        if text:
            line.clear()
            self.say(f"  {printer.offset(event['timestamp'])}: {text}")

    def results(self) -> list[dict[str, Any]]:
        """What was staged out, with sizes and lines."""
        found = []
        base = os.path.join(self.directory, "results")
        for name in sorted(os.listdir(base)) if os.path.isdir(base) else ():
            with open(os.path.join(base, name), "rb") as lines:
                data = lines.read()
            found.append({"path": f"results/{name}", "bytes": len(data), "lines": data.count(b"\n")})
        return found

    def show(self, job: dict[str, Any], results: list[dict[str, Any]]) -> None:
        self.say()
        self.say(f"Its eventlog (leveret job eventlog -H {output.f58(job['id'])}):")
        events = EventFormat("text", "human", output.colours("auto"))
        for event in self.events:
            self.say(f"  {events.line(event)}")
        self.say()
        self.say("The results, here the moment the job is clean:")
        for item in results:
            self.say(f"  {item['path']}  {item['bytes']} bytes, {item['lines']} lines")
        self.say(f"Verdict: {job.get('result')}, exit code {job.get('exit_code')}")
        if self.keep:
            self.say(f"Kept: {self.directory}")
