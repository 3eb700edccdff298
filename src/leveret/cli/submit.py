"""`leveret submit`: submit one job, or a copy per id of `--cc`; optionally wait for them or watch them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import click

from leveret.cli import envrules, output, submission
from leveret.cli.manyopts import MANY_OPTIONS, Logs, logged
from leveret.cli.submission_command import SubmissionCommand
from leveret.errors import ForbiddenError, FormatError, InvalidError, LeveretError

BATCH = 500


@click.command(
    "submit",
    cls=SubmissionCommand,
    usage="[OPTIONS...] COMMAND [ARGS...]",
    help_names=("--help",),
    wraps=True,
    examples=(
        ("leveret submit ./step", "print the job's id and leave"),
        ("id=$(leveret submit make); leveret submit --dependency=afterok:$id ./use", "one after the other"),
        ("leveret submit --cc=0-99 --wait ./part {cc}", "a hundred jobs; the exit code is the worst of theirs"),
    ),
)
@submission.options(
    *MANY_OPTIONS,
)
def submit(**params: Any) -> int:
    """Submit jobs and print their ids; each job is on disk when its id is printed."""
    for notice in submission.deprecations(params["dependency"]):
        output.plain(notice)
    with Logs(params):
        same = copies_of_one(params)
        jobs = [] if same is not None else list(requests(params))
        if params["dry_run"]:
            for job in jobs:
                output.json_data(job["jobspec"])
            return 0
        from leveret.client import Client

        with Client() as client:
            if same is not None:
                ids, code = send_copies(client, *same, params["quiet"])
            else:
                ids, code = send(client, jobs, params["quiet"])
            return stay(client, ids, code, params)


def stay(client: Any, ids: list[int], code: int, params: dict[str, Any]) -> int:
    """What --watch, --wait, --wait-event and --progress ask for once the jobs are submitted. Returns the worst code."""
    bar = None
    if params["progress"]:
        if output.is_terminal(1):
            from leveret.cli.progress import Progress

            bar = Progress(client.uri, ids, params["jps"])
        else:
            output.plain(f"{output.NAME}: WARNING: stdout is not a tty. Ignoring --progress option")
    if params["watch"] or (params["verbose"] >= 2 and params["wait"]):
        from leveret.cli.watch import watch

        return max(code, watch(client, ids, params["label_io"], params["watch"], params["verbose"], bar))
    if bar is not None and (params["wait"] or not params["wait_event"]):
        return max(code, bar.run(params["wait"]))
    if params["wait_event"]:
        return max(code, wait_event(client, ids, params["wait_event"]))
    if params["wait"]:
        return max(code, wait(client, ids, "clean"))
    return code


def copies_of_one(params: dict[str, Any]) -> tuple[dict[str, Any], list[str | None]] | None:
    """(request, copies) when all jobs of --cc or --bcc are the same but for FLUX_JOB_CC: sent as one jobspec then."""
    if not (params["cc"] or params["bcc"]) or (params["cc"] and params["bcc"]) or params["dry_run"]:
        return None
    if "{cc}" in f"{params['log']}{params['log_stderr']}":
        return None
    spec = submission.build(params, {})
    if "{cc}" in json.dumps(spec) or any("{cc}" in rule for rule in params["env"]):
        return None
    copies = copy_ids(params["cc"] or params["bcc"]) or []
    system = spec["attributes"]["system"]
    system["environment"] = {**envrules.apply(params["env"], envrules.inherited()), **system["environment"]}
    urgency, flags = submission.urgency_of(params["urgency"]), submission.flags_of(params["flags"])
    return (
        {"jobspec": spec, "urgency": urgency, "flags": flags},
        [str(copy) if params["cc"] else None for copy in copies],
    )


def send_copies(
    client: Any, request: dict[str, Any], copies: Sequence[str | None], quiet: bool
) -> tuple[list[int], int]:
    """Submit the same job many times and print ids as they are known. Returns them, and 1 if any was refused."""
    ids: list[int] = []
    code = 0
    for first in range(0, len(copies), BATCH):
        try:
            results = client.submit_copies(copies=copies[first : first + BATCH], **request)
        except (InvalidError, ForbiddenError) as refused:  # the one jobspec is bad, and so is every copy
            return ids, refuse(refused)
        ids += [result for result in results if isinstance(result, int)]
        code = max(code, told(results, quiet))
    return ids, code


def requests(params: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The jobs to submit. `{cc}` is replaced in everything but what the environment brings."""
    if params["cc"] and params["bcc"]:
        raise InvalidError("specify only one of --cc or --bcc")
    urgency, flags = submission.urgency_of(params["urgency"]), submission.flags_of(params["flags"])
    inherited = envrules.inherited()
    spec = submission.build(params, {})
    environment = envrules.apply(params["env"], inherited)
    copies = copy_ids(params["cc"] or params["bcc"])
    if copies is None:
        spec["attributes"]["system"]["environment"].update(environment)
        yield {"jobspec": spec, "urgency": urgency, "flags": flags}
        return
    # what --setattr put into the environment is in the text, and wins
    text = json.dumps(spec)
    rules_vary = any("{cc}" in rule for rule in params["env"])
    for copy in copies:
        own = json.loads(text.replace("{cc}", str(copy)))
        if rules_vary:
            environment = envrules.apply([rule.replace("{cc}", str(copy)) for rule in params["env"]], inherited)
        system = own["attributes"]["system"]
        system["environment"] = {**environment, **system["environment"]}
        if params["cc"]:
            system["environment"]["FLUX_JOB_CC"] = str(copy)
        yield {"jobspec": own, "urgency": urgency, "flags": flags, **log_names(params, str(copy))}


def log_names(params: dict[str, Any], copy: str) -> dict[str, Any]:
    """The files of this copy's id and messages, where `--log` and `--log-stderr` name one per copy."""
    names = [
        name.replace("{cc}", copy) if name and "{cc}" in name else "" for name in (params["log"], params["log_stderr"])
    ]
    return {"logs": tuple(names)} if any(names) else {}


def copy_ids(text: str | None) -> list[int] | None:
    if text is None:
        return None
    from leveret.core import idset

    try:
        ids = idset.parse(text)
    except FormatError:
        raise InvalidError(f"IDset(): Invalid argument: {text}", "for example 0-9 or 1,3-5")
    if not ids:
        raise InvalidError(f"IDset(): Invalid argument: {text}", "the set is empty")
    return ids


def send(client: Any, jobs: Sequence[dict[str, Any]], quiet: bool) -> tuple[list[int], int]:
    """Submit and print ids as they are known. Returns them, and 1 if any was refused."""
    ids: list[int] = []
    code = 0
    logs = [job.pop("logs", None) for job in jobs]
    for first in range(0, len(jobs), BATCH):
        batch = jobs[first : first + BATCH]
        results: list[int | LeveretError]
        if len(jobs) == 1:
            try:
                results = [client.submit(**batch[0])]
            except (InvalidError, ForbiddenError) as refused:
                results = [refused]
        else:
            results = client.submit_many(batch)
        accepted = [result for result in results if isinstance(result, int)]
        ids += accepted
        if any(logs):
            for result, names in zip(results, logs[first : first + BATCH], strict=True):
                with logged(*(names or ("", ""))):
                    code = max(code, told([result], quiet))
        else:
            code = max(code, told(results, quiet))
    return ids, code


def told(results: Sequence[int | LeveretError], quiet: bool) -> int:
    """Print the ids, and why others were refused. Returns 1 if any was."""
    if not quiet:
        output.data_lines(output.f58(result) for result in results if isinstance(result, int))
    return max((refuse(result) for result in results if isinstance(result, LeveretError)), default=0)


def refuse(refused: LeveretError) -> int:
    """Print why a job was not taken, as Flux words it."""
    if not isinstance(refused, InvalidError | ForbiddenError):
        return output.error(refused)
    output.plain(f"[Errno {1 if isinstance(refused, ForbiddenError) else 22}] {refused.message}")
    if refused.hint:
        output.plain(f"hint: {refused.hint}")
    return 1


def wait(client: Any, ids: Sequence[int], event: str) -> int:
    """Until each job has `event` or is done. Returns the worst exit code of those that are done."""
    worst = 0
    for line in client.wait_many(ids, event, brief=True):
        job = line.get("job") or {}
        if job.get("done") or event == "clean":
            worst = max(worst, int(job.get("exit_code") or 0))
            show_exception(job)
    return worst


def show_exception(job: dict[str, Any]) -> None:
    if job.get("exception_occurred") and job.get("exception_severity") == 0:
        output.plain(
            f"job.exception: type={job.get('exception_type')} severity={job.get('exception_severity')} "
            f"{job.get('exception_note') or ''}"
        )


def wait_event(client: Any, ids: Sequence[int], name: str) -> int:
    """`exec.NAME` is an event of the execution, others are of the job; one that never comes is no failure."""
    if not name.startswith("exec."):
        return wait(client, ids, name)
    worst = 0
    for jobid in ids:
        for line in client.events(jobid, ["exec"], follow=True):
            if line.get("end"):
                worst = max(worst, int(line["job"].get("exit_code") or 0))
                show_exception(line["job"])
            elif "event" in line and line["event"]["name"] == name.removeprefix("exec."):
                break
    return worst
