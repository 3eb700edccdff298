"""TCP ports for MPI bootstraps (PALS): each job has its own on its nodes, in LEVERET_PORTS=11000,11001 of its tasks.
conf: `range` (11000-12999), `count` per job (2), `env`: the variable's name."""

import sys

from leveret.core.job import Hold, Job
from leveret.plugins.hooks import Answers, Plugin, PrologHold, Remember, SetEnv, WorkFailed

CHECK = [sys.executable, "-c", "import socket, sys\nfor port in sys.argv[1:]: socket.socket().bind(('', int(port)))"]


class Ports(Plugin):
    def free(self, job: Job, above: int = 0) -> tuple[list[int], list[str]]:
        low, high = map(int, str(self.conf.get("range", "11000-12999")).split("-"))
        rset, count = self.manager.resources(job.id), int(self.conf.get("count", 2))
        mine = {node.host for node in rset.ranks.values()} if rset else set()
        used = [self.manager.recall(other.id, "has", ([], [])) for other in self.manager.active() if other.id != job.id]
        for shared in (False, True):  # that no job has; when all are had, that no job on the same nodes has
            taken = {port for ports, hosts in used if not shared or mine & set(hosts) for port in ports}
            for first in range(max(low, above), high + 2 - count, count):
                if taken.isdisjoint(ports := range(first, first + count)):
                    return list(ports), sorted(mine)
        raise WorkFailed(f"no {count} ports from {low} to {high} are free on {','.join(sorted(mine))}")

    def state_run(self, job: Job) -> Answers:
        return PrologHold("ports", work=self.give(job), deadline_s=600)

    async def give(self, job: Job) -> None:
        ports, hosts = self.manager.recall(job.id, "has") or self.free(job)
        rset, busy = self.manager.resources(job.id), True
        while busy and rset:  # what is answered is stored first, and goes with the job
            self.manager.answer(job.id, Remember(has=(ports, hosts)))
            run = self.manager.run_on(job.id, f"ports-{ports[0]}", rset.ranks, [*CHECK, *map(str, ports)])
            busy = any(result.status for result in (await run).values())  # somebody else listens there
            ports, hosts = self.free(job, ports[-1] + 1) if busy else (ports, hosts)
        self.manager.answer(job.id, SetEnv({self.conf.get("env", "LEVERET_PORTS"): ",".join(map(str, ports))}))

    async def resume(self, job: Job, hold: Hold) -> None:
        await self.give(job)
