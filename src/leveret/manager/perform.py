"""Asks that start or signal processes. The ask is in the turn's transaction; the call follows the commit."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from leveret.config import duration_error
from leveret.core import duration, taskmap
from leveret.core import jobid as jobids
from leveret.errors import FormatError
from leveret.manager import plugindata, shellopts
from leveret.manager.entry import Entry, NodeAsk
from leveret.manager.turn import Turn
from leveret.manager.workruns import WorkRuns

if TYPE_CHECKING:
    from leveret.manager.manager import Manager


#: environments kept at hand
ENVS_MAX = 64


class Perform(WorkRuns):
    def __init__(self, manager: Manager) -> None:
        super().__init__()
        self.manager = manager
        try:
            self.kill_timeout_s = duration.parse(manager.config.exec.kill_timeout)
        except FormatError as error:
            raise duration_error(manager.config, "exec.kill-timeout", error.message) from None
        self.bind = manager.config.exec.cpu_affinity == "on"  #: tasks are bound to the job's cores by default
        self._envs: dict[str, dict[str, str]] = {}
        #: job → asks that are sent when its first node has begun: that one empties the files that they share
        self._rest: dict[int, list[tuple[NodeAsk, dict[str, Any]]]] = {}

    def limit(self, entry: Entry, only: NodeAsk | None = None) -> None:
        """Tell the helpers (or one of them) that the time limit of the job's tasks has changed; said twice, it is harmless."""
        job, rset = entry.job, entry.rset
        if rset is None or not job.started:
            return  # the tasks' spec will bring it
        expiration = job.expiration
        left_s = max(0.0, expiration - self.manager.clock.time()) if expiration else None
        for ask in entry.job_asks() if only is None else [only]:
            if ask.status is None and ask.incarnation == self.manager.engine.incarnation(ask.node):
                self.manager.engine.limit(ask.node, ask.unit, left_s)

    # ---- a job's tasks -----------------------------------------------------------------------------

    def start(self, turn: Turn, entry: Entry) -> None:
        """Ask every node of the job for its tasks; stored before it is sent."""
        assert entry.rset is not None
        engine = self.manager.engine
        specs = self.task_specs(entry)
        asks = [NodeAsk(entry.unit, node, engine.incarnation(node)) for node in specs]
        for ask in asks:
            entry.asks[(ask.unit, ask.node)] = ask
            entry.dirty.add((ask.unit, ask.node))
        self.manager.units.asked_at[entry.job.id] = turn.now

        now = asks
        if (shell := self.shell(entry)) is not shellopts.PLAIN and shell.common_file(len(asks)):
            now = asks[:1]
            self._rest[entry.job.id] = [(ask, specs[ask.node]) for ask in asks[1:]]

        def send() -> None:
            for ask in now:
                self.send(ask, specs[ask.node])

        turn.batch.urgent.append(send)

    def send_rest(self, entry: Entry) -> None:
        """The first node has begun, or will not: the others may."""
        for ask, spec in self._rest.pop(entry.job.id, ()):
            self.send(ask, spec)
            if "kill" in entry.in_flight and ask.status is None:
                self.manager.engine.signal(ask.node, ask.unit, signal.SIGTERM, self.kill_timeout_s)

    def shell(self, entry: Entry) -> shellopts.Shell:
        """The job's shell options."""
        if entry.shell is None:
            entry.shell = shellopts.read(self.manager.jobspec(entry.job.id))
        return entry.shell

    def layout(self, entry: Entry) -> list[list[int]]:
        """The ranks of the tasks on each allocated node."""
        counts = self.task_counts(entry)
        return shellopts.place(self.shell(entry), counts) or taskmap.place("block", "", counts)

    def send(self, ask: NodeAsk, spec: dict[str, Any]) -> None:
        """The ask is on disk. The helper that it was made to may be gone by now; another one must not hear of it."""
        if ask.status is None and ask.incarnation == self.manager.engine.incarnation(ask.node):
            self.manager.engine.start(ask.node, ask.unit, spec)

    def task_specs(self, entry: Entry) -> dict[int, dict[str, Any]]:
        """node → the helper's spec; the same for the same job, so that it can be sent again."""
        manager, job, digest = self.manager, entry.job, entry.digest
        rset = entry.rset
        assert rset is not None
        spec = manager.jobspec(job.id)
        system = spec["attributes"]["system"]
        options = (system.get("shell") or {}).get("options") or {}
        test = (system.get("exec") or {}).get("test")  # read by the simulated engine
        counts = self.task_counts(entry)
        shell = self.shell(entry)
        placed = shellopts.place(shell, counts)
        refusal = shellopts.refusal_of(shell, counts)
        f58 = jobids.encode(job.id)
        nodes = [node for node, count in zip(rset.ranks, counts, strict=True) if count]
        environment = system.get("environment") or {}
        own = {"FLUX_JOB_CC": environment["FLUX_JOB_CC"]} if environment.get("FLUX_JOB_CC") is not None else {}
        env_key = entry.env_hash
        if env_key is None or any(key.startswith("attributes.system.environment") for key in job.updates):
            env_key = f"job-{job.id}"
        base = self._base_env(env_key, environment)
        env = {
            **own,
            "FLUX_JOB_ID": f58,
            "FLUX_JOB_ID_PATH": f"/{f58}",
            "FLUX_JOB_SIZE": str(sum(counts)),
            "FLUX_JOB_NNODES": str(len(nodes)),
            "FLUX_KVS_NAMESPACE": f"job-{job.id}",
            "LEVERET_URI": manager.uri,
            "FLUX_URI": manager.uri,
        }
        if "output" in options and isinstance(options["output"], dict):
            limit = options["output"].get("limit", manager.config.exec.output_limit)
        else:
            limit = manager.config.exec.output_limit
        specs: dict[int, dict[str, Any]] = {}
        first = 0
        for at, (node, count) in enumerate(zip(rset.ranks, counts, strict=True)):
            if not count:
                continue
            ranks = range(first, first + count) if placed is None else placed[at]
            tmpdir = os.path.join(manager.tmp_dir, f"jobtmp-{node}-{f58}")
            hexid = f"{job.id:016x}"
            specs[node] = {
                "kind": "tasks",
                "jobid": job.id,
                "argv": spec["tasks"][0]["command"],
                "cwd": system.get("cwd") or "/",
                "env": {**env, "FLUX_JOB_TMPDIR": tmpdir, **plugindata.node_env(entry, rset.ranks[node].host)},
                "env_key": env_key,
                "base_env": base,
                "tasks": [
                    {
                        "rank": rank,
                        "local": local,
                        "env": {"FLUX_TASK_RANK": str(rank), "FLUX_TASK_LOCAL_ID": str(local)},
                    }
                    for local, rank in enumerate(ranks)
                ],
                "duration_s": digest.duration_s or None,
                "kill_timeout_s": self.kill_timeout_s,
                "output": {
                    "memory_max": 65536,
                    "limit_bytes": _limit(limit),
                    "file": f"{hexid[-3:-1]}/{hexid}.out",
                    "unbuffered": _unbuffered(options),
                },
                "stdin": "pipe",
                "tmpdir": tmpdir,
                "umask": None,
                "setpgrp": not options.get("nosetpgrp"),
                "log": None,
            }
            if test:
                specs[node]["test"] = test
            if shell.affinity != "off" and (shell.affinity != shellopts.AFFINITY or self.bind):
                specs[node]["cores"] = rset.ranks[node].cores
            if rlimit := options.get("rlimit"):
                specs[node]["rlimit"] = rlimit
            if shell is not shellopts.PLAIN:
                part = rset.ranks[node]
                place = shellopts.Place(
                    job.id, digest.name, sum(counts), len(nodes), len(specs) - 1, part.host, part.cores, part.gpus
                )
                shellopts.complete(specs[node], shell, place, refusal)
                if entry.winsize is not None and "pty" in specs[node]:
                    specs[node]["pty"]["size"] = entry.winsize
            first += count
        return specs

    def _base_env(self, key: str, environment: dict[str, Any]) -> dict[str, str]:
        """What all jobs of one stored environment get; the same object for the same key."""
        base = self._envs.get(key)
        if base is None:
            own = ("FLUX_JOB_CC", "FLUX_TERMINUS_SESSION")
            # null unsets a variable (RFC 14)
            base = {k: v for k, v in environment.items() if v is not None and k not in own}
            self._envs[key] = base
            if len(self._envs) > ENVS_MAX:
                del self._envs[next(iter(self._envs))]
        return base

    def task_counts(self, entry: Entry) -> list[int]:
        """Tasks per allocated node, in rank order."""
        digest, rset = entry.digest, entry.rset
        assert rset is not None
        if digest.nnodes:
            slots = [max(1, digest.slots_per_node)] * len(rset.ranks)
        else:
            slots = [
                _slots(len(n.cores), len(n.gpus), digest.cores_per_slot, digest.gpus_per_slot)
                for n in rset.ranks.values()
            ]
        return taskmap.distribute(digest.ntasks, slots)

    def kill(self, entry: Entry, signum: int = signal.SIGTERM) -> None:
        """End the tasks: SIGTERM, then SIGKILL to all that is left after the kill timeout."""
        for ask in entry.job_asks():
            if ask.status is None:
                self.manager.engine.signal(ask.node, ask.unit, signum, self.kill_timeout_s)

    def signal(self, entry: Entry, signum: int) -> None:
        """Just a signal to the tasks."""
        for ask in entry.job_asks():
            if ask.status is None:
                self.manager.engine.signal(ask.node, ask.unit, signum, None)


def _slots(cores: int, gpus: int, cores_per_slot: int, gpus_per_slot: int) -> int:
    fit = cores // cores_per_slot if cores_per_slot else cores
    return min(fit, gpus // gpus_per_slot) if gpus_per_slot else fit


def _limit(value: Any) -> int | None:
    """A byte count; `K`, `M` and `G` are powers of 1024. None = no limit."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value >= 0 else None
    text = str(value).strip()
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    digits = text[:-1] if scale > 1 else text
    try:
        return int(float(digits) * scale)
    except ValueError:
        return None


def _unbuffered(options: dict[str, Any]) -> bool:
    output = options.get("output")
    if not isinstance(output, dict):
        return False
    stdout = output.get("stdout")
    buffer = stdout.get("buffer") if isinstance(stdout, dict) else None
    return isinstance(buffer, dict) and buffer.get("type") == "none"
