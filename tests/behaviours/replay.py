"""Replay scenarios that were measured on real Flux, and compare what is essential.

    python tests/behaviours/replay.py [ID…]       print the differences

A scenario is a list of shell steps, run one after the other in one shell (variables live on) in a folder of its own, on an
instance of its own, with a `flux` on the PATH that is Leveret. What counts as essential:

- **exit codes**: equal.
- **stdout**: the same lines in any order, after both sides are normalised (job ids by order of submission, times, durations, pids,
  host names, folder, runs of blanks, the colour of check marks, which Flux has in files too; the word form of an id; limits of the machine). JSON is compared as JSON: every key of Flux's with
  the same value in ours, whatever we add; so is a sorted list of keys. A `data` event that carries its `eof` counts as two.
- **stderr**: the same lines in any order, after the same normalisation; `hint:` lines of ours and lines of Flux's broker log are
  ignored, a usage text counts as one line whatever it says, and so does what a JSON parser says about text that is no JSON.
- **events**: per job the same names in the same order (`release` may fall on either side of `epilog-finish`), and every
  key of Flux's context with the same value in ours; keys that we add are ignored. Of a `resource_summary` the number of cores of each
  rank counts, not which of them were free. Where Flux's log was read before the job was over, ours may go on.
- **output, input**: per stream and rank the same bytes and the same end; the same redirects.
- Scenarios were measured one after the other on one instance; `HISTORY` submits beforehand what their counts include. `TIMING` names
  what in a scenario depends on chance, with the reason.

What was ignored is reported by `Report.ignored`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data" / "flux" / "behaviours.jsonl"
LEVERET = str(Path(sys.executable).with_name("leveret"))
STEP_TIMEOUT_S = 90
MARK = "@@step@@"
#: what stands for the jobtap plugins of Flux's t/: NAME.py for NAME.so; in what is compared both are NAME
PLUGINS = Path(__file__).parent / "plugins"

#: files that the scenarios expect in their folder
FILES: dict[str, str] = {
    "f": "not executable\n",
    "in": "data\n",
    "afile": "data\n",
    "envf": "FOO=bar\nX=${FOO}2\n",
    "mp": "0 echo zero\n1 echo one %t %o\n",
}


#: group → leveret.toml of its instances
def _perilog(prolog: str = "", epilog: str = "", more: str = "", epilog_more: str = "") -> str:
    """Configuration of a scenario's prolog and epilog; CWD is its folder."""
    text = ""
    for phase, command, extra in (("prolog", prolog, more), ("epilog", epilog, epilog_more)):
        if command:
            text += f"[job-manager.{phase}]\ncommand = ['sh', '-c', '{command}']\n{extra}\n"
    return text


CONFIG: dict[str, str] = {
    "perilog.normal": _perilog(
        "echo P $FLUX_JOB_ID $FLUX_JOB_USERID >>CWD/log; env | grep ^FLUX_ | cut -d= -f1 | sort >CWD/env",
        "echo E >>CWD/log",
    ),
    "perilog.attach-status": _perilog("sleep 1", "sleep 0.2"),
    "perilog.prolog-fail": _perilog("echo bad thing >&2; exit 3"),
    "perilog.prolog-fail-epilog": _perilog("exit 1", "true"),
    "perilog.prolog-signal": _perilog("kill -9 $$"),
    "perilog.epilog-fail": _perilog(epilog="exit 2"),
    "perilog.cancel-in-prolog": _perilog("exec sleep 9", "true"),
    "perilog.cancel-in-prolog-nocancel": _perilog("sleep 1", more="cancel-on-exception = false"),
    "perilog.cancel-prolog-ignores-term": _perilog(
        'trap "" TERM; sleep 3', more='kill-timeout = "1s"\nper-rank = true'
    ),
    "perilog.prolog-timeout": _perilog("exec sleep 9", more='timeout = "0.3s"'),
    "perilog.epilog-timeout": _perilog(epilog="exec sleep 9", epilog_more='timeout = "0.3s"'),
    "perilog.cancel-in-epilog": _perilog(epilog="sleep 1"),
    "perilog.cancel-in-epilog-coe": _perilog(epilog="sleep 1", epilog_more="cancel-on-exception = true"),
    "perilog.cancel-before-alloc": _perilog("true", "true"),
    "perilog.job-fail-epilog-runs": _perilog(epilog="true"),
    "perilog.per-rank": _perilog("echo $LEVERET_NODE_RANK", "true", "per-rank = true"),
    "perilog.per-rank-fail": _perilog("exit $LEVERET_NODE_RANK", more="per-rank = true"),
    "housekeeping.basic": '[job-manager.housekeeping]\ncommand = ["sleep", "1"]\n',
    "housekeeping.fail": '[job-manager.housekeeping]\ncommand = ["false"]\n',
    "housekeeping.kill": '[job-manager.housekeeping]\ncommand = ["sleep", "9"]\n',
    "queue": """\
[queues.debug]
policy.limits.duration = "1m"
[queues.batch]
[policy.jobspec.defaults.system]
queue = "batch"
""",
}

#: scenario → what was on the instance before
HISTORY: dict[str, str] = {
    "queue.named-submit": "flux queue start --all --quiet",
    "queue.named-status": "flux queue start --all --quiet",
    "queue.update": "flux queue start --all --quiet",
    "last.basic": "flux submit --cc=1-32 --quiet --wait true",
    "purge.basic": "flux submit --cc=1-35 --quiet --wait true",
    "resource.eventlog": (
        "flux resource drain 1 bad node; flux resource drain -f 1 other reason; flux resource drain -u 1 upd; "
        "flux resource undrain 1; flux resource drain 0 r; flux resource undrain 0"
    ),
    "jobs.ids": "flux submit --quiet --wait false; flux submit --job-name=j --quiet --wait true",
}

#: scenario → (what, what it counts as, why) for text that depends on chance, or on where Flux was measured, or that is ours only
TIMING: dict[str, list[tuple[str, str, str]]] = {
    "resource.drain-running": [
        (
            r"^drain(ing|ed) 0 r$",
            "drain 0 r",
            "whether `sleep 1` is over when a busy machine asks (test_resources.py is strict)",
        ),
        (r"^allocated [01]$", "allocated N", "the same"),
    ],
    "submit.F58-locale": [(r"\b66 [0-9a-f]{2}\b", "66 XX", "the second letter of an id")],
    "info.keys": [(r'^\{"timestamp":\d*$', '{"timestamp":', "where a time was cut off")],
    "eventlog.formats": [(r"(?<=m )(\d )+\. *\n\d+ (\d )+", "TS ", "a time, letter by letter")],
    "wait-event.path": [(r"\nTS data .*eof=true$", "", "whether the end of a stream comes with its last data")],
    "cancel.unknown": [(r"ƒXYZ", "<F58>", "an id too short to be known as one")],
    "submit.progress": [
        (
            r"(?s).*(PD:0 R:0 CD:3 F:0 │)[^│\n]*(│\s*100\.0%)?.*",
            r"\1",
            "what is drawn before the last state, in how many cells",
        ),
    ],
    "perilog.normal": [(r"^FLUX_(CONNECTOR_PATH|EXEC_PATH|MODULE_PATH|START_URI)\n", "", "where Flux is installed")],
    "perilog.attach-status": [
        (r" prolog:job-manager\.prolog$", "", "who keeps it from starting (R07): more than Flux says")
    ],
    "perilog.prolog-fail": [(r"^\S+\.(debug|info)\[0\]: .*\n?", "", "what was logged before the prolog failed")],
    "dep.singleton": [
        (r"^(SCHED|DEPEND singleton)$", "STATE", "whether the first job had ended when the second was listed")
    ],
    "raise.sev1-pending": [(r"^SCHED( foo)?$", "SCHED", "Flux's listing is behind its eventlog; ours cannot be")],
    "kill.killall": [(r"(User defined signal 1) [02] jobs", r"\1 N jobs", "whether the jobs had ended by then")],
    "submit.log": [(r"^ƒ\d+JOB$|^<ID1>$|^ƒ\S*JOB$", "JOB", "an id that was cut at its first f")],
}


def scenarios() -> list[dict[str, Any]]:
    return [json.loads(line) for line in DATA.read_text().splitlines()]


class Report:
    """What differs, and what was ignored."""

    def __init__(self, scenario: str) -> None:
        self.scenario = scenario
        self.differences: list[str] = []
        self.ignored: list[str] = []

    def differ(self, what: str, flux: object, ours: object) -> None:
        self.differences.append(f"{what}\n    flux: {flux}\n    ours: {ours}")


class Normal:
    """Both sides in the same words."""

    def __init__(self, ids: dict[str, str], folder: str, hosts: list[str]) -> None:
        self.ids = sorted(ids.items(), key=lambda pair: -len(pair[0]))
        self.folder = folder
        self.hosts = hosts

    def __call__(self, text: str) -> str:
        for spelled, name in self.ids:
            text = re.sub(rf"(?<![\w.]){re.escape(spelled)}(?![\w])", name, text)
        text = text.replace(self.folder, "$CWD")
        text = re.sub(r"\bnode\[[\d,-]+\]", "HOST", text)
        for host in self.hosts:
            text = re.sub(rf"(?<![\w$/]){re.escape(host)}(?![\w-])", "HOST", text)
        return common(text)


def common(text: str) -> str:
    """Times, durations, pids, and what pads."""
    text = re.sub(r"ƒ[1-9A-HJ-NP-Za-km-z]{5,}|\bf[1-9A-HJ-NP-Za-km-z]{8,}\b", "<F58>", text)
    text = re.sub(r"\b1[6-9]\d{8}\.\d+", "TS", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(Z|[+-]\d\d:?\d\d)?", "ISOTIME", text)
    text = re.sub(r"\[(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\d\d \d\d:\d\d\]", "[MonDD HH:MM]", text)
    text = re.sub(r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\d\d\s+\d\d:\d\d", "MonDD HH:MM", text)
    text = re.sub(r"\[\s*\+\d+\.\d+\]", "[ +S.SSSSSS]", text).replace("[  +S.SSSSSS]", "[ +S.SSSSSS]")
    text = re.sub(r"\b\d+(\.\d+)?s\b", "N.NNs", text)
    text = re.sub(r"\b\d\d:\d\d:\d\d\b", "HH:MM:SS", text)
    text = re.sub(r"\b0\.\d{4,}\b", "F.FFFF", text)
    text = re.sub(r"\b[a-z]+-[a-z]+-[a-z]+--[a-z]+-[a-z]+-[a-z]+\b", "<WORDS>", text)
    text = re.sub(r"(?<![\w/])([\w-]+)\.so\b", r"\1", text)
    text = re.sub(r'"(nofile|nproc)":\s*\d+', r'"\1":N', text)
    text = re.sub(
        r'^(TS data stream="\w+" rank="\d+")( data=".*") eof=true$', r"\1\2\n\1 eof=true", text, flags=re.MULTILINE
    )
    text = re.sub(r"(invalid JSON): .*", r"\1", text)
    text = re.sub(r'"pid":\s*\d+', '"pid":N', text).replace("pid NNN", "pid=N")
    text = re.sub(r"\bpid[= ](\d+|NNN)\b", "pid=N", text)
    text = re.sub(r"HOST(,HOST)+", "HOST", text)
    # that a hold has a deadline is said in its event
    text = re.sub(r'( deadline=TS|,"deadline":TS)', "", text)
    # Flux does not say where a prolog without per-rank ran; ours does
    text = text.replace("on unknown (rank (null))", "on HOST (rank 0)")
    text = re.sub(r"<ID(\d+):\w+>", r"<ID\1>", text)
    text = re.sub(r"\x1b\[01;3[12]m ?([✔✗])\x1b\[0;0m", r"\1", text)
    lines = [re.sub(r"[ \t]+", " ", line).strip() for line in text.split("\n")]
    return "\n".join(lines).strip("\n")


USAGE = re.compile(r"^usage:.*?(?=^\S*: error: |^hint:|\Z)", re.IGNORECASE | re.MULTILINE | re.DOTALL)


def stderr_lines(text: str, report: Report | None = None) -> list[str]:
    """In any order; hints are ours, a usage text is one line."""
    if re.search(r"^usage:", text, re.IGNORECASE | re.MULTILINE):
        return ["(usage)"]
    lines = []
    for line in text.splitlines():
        if line.startswith("hint: ") or " broker.err[" in line:
            if report is not None:
                report.ignored.append(line)
        elif line.strip():
            lines.append(line)
    return sorted(lines)


class Instance:
    """An instance of its own around one scenario."""

    def __init__(self, base: Path, size: int, cores: int = 2, config: str = "") -> None:
        self.base = base
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("FLUX_", "LEVERET_", "XDG_"))}
        read, write = os.pipe()
        cpus = sorted(os.sched_getaffinity(0))[:cores]
        command = [sys.executable, "-m", "leveret.daemon", "--statedir", f"{base}/state", "--socket", f"{base}/sock"]
        command += ["--size", str(size), "--ready-fd", str(write)]
        if config:
            (base / "leveret.toml").write_text(config)
            command += ["--config", f"{base}/leveret.toml"]
        self.daemon = subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, cpus)), *command],
            pass_fds=[write],
            stdin=subprocess.DEVNULL,
            env=self.env,
        )
        os.close(write)
        with os.fdopen(read) as ready:
            answer = ready.readline().strip()
        assert answer == "ok", answer
        bin_dir = base / "bin"
        bin_dir.mkdir()
        flux = bin_dir / "flux"
        flux.write_text(f'#!/bin/sh\nexec "{LEVERET}" "$@"\n')
        flux.chmod(0o755)
        self.env |= {
            "PATH": f"{bin_dir}:{Path(LEVERET).parent}:/usr/local/bin:/usr/bin:/bin",
            "LEVERET_URI": f"local://{base}/sock",
            "LEVERET_AS_FLUX": "1",
            "LC_ALL": "C.UTF-8",
            "HOME": str(base),
        }

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run([LEVERET, "shutdown", "--timeout=3"], env=self.env, capture_output=True, timeout=60, check=False)
        try:
            self.daemon.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.daemon.wait()

    def client(self, *args: str) -> str:
        done = subprocess.run([LEVERET, *args], env=self.env, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout


def with_plugins(command: str) -> str:
    """Python plugins in place of Flux's shared objects."""

    def ours(match: re.Match[str]) -> str:
        path = PLUGINS / f"{match[2]}.py"
        return f"{match[1]}{path}" if path.exists() else match[0]

    command = re.sub(r"(\bflux jobtap load )(?:\$BUILD/t/job-manager/plugins/\.libs/)?([\w-]+)\.so", ours, command)
    return re.sub(r"(\bflux jobtap (?:remove|query) [\w-]+)\.so", r"\1", command)


def run_steps(instance: Instance, folder: Path, steps: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each step, all in one shell."""
    script = []
    for number, step in enumerate(steps):
        script.append(f"{{\n{with_plugins(step['cmd'])}\n}} >{folder.parent}/o{number} 2>{folder.parent}/e{number}")
        script.append(f"echo $? >{folder.parent}/r{number}")
    path = folder.parent / "script"
    path.write_text("\n".join(script) + "\n")
    try:
        subprocess.run(
            ["bash", str(path)],
            cwd=folder,
            env=instance.env,
            stdin=subprocess.DEVNULL,
            timeout=STEP_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pass
    out = []
    for number in range(len(steps)):
        code = folder.parent / f"r{number}"
        texts = [
            (folder.parent / f"{kind}{number}").read_bytes().decode("utf-8", "backslashreplace")
            if (folder.parent / f"{kind}{number}").exists()
            else ""
            for kind in "oe"
        ]
        out.append((int(code.read_text()) if code.exists() and code.read_text().strip() else -1, *texts))
    return out


def events_of(instance: Instance, jobid: int, path: str) -> list[tuple[str, dict[str, Any]]]:
    text = instance.client("job", "eventlog", "-f", "json", "-p", path, str(jobid))
    return [(e["name"], e.get("context", {})) for e in map(json.loads, text.splitlines())]


def streams(events: list[Any]) -> tuple[dict[str, str], list[str]]:
    """Per stream and rank the data and its end; and the redirects."""
    data: dict[str, str] = {}
    redirects = []
    for item in events:
        name, context = item[0], (item[1] if len(item) > 1 else {})
        if name == "data":
            key = f"{context['stream']}[{context['rank']}]"
            data[key] = data.get(key, "") + str(context.get("data", "")) + ("<eof>" if context.get("eof") else "")
        elif name == "redirect":
            redirects.append(f"{context['stream']} {context.get('rank')} {context.get('path')}")
    return data, sorted(redirects)


def cores(summary: str) -> str:
    """A resource_summary with the number of cores in place of which they are."""

    def count(match: re.Match[str]) -> str:
        parts = [part.split("-") for part in match[1].strip("[]").split(",")]
        return f"core*{sum(int(part[-1]) - int(part[0]) + 1 for part in parts)}"

    return re.sub(r"core(\[[\d,-]+\]|\d+)", count, summary)


def quoted(text: str) -> Any:
    """JSON in which numbers were normalised to words."""
    return json.loads(re.sub(r"(?<=[:\s\[,])(TS|F\.FFFF|N)(?=[,\s\]}])", r'"\1"', text))


def json_values(text: str) -> list[Any] | None:
    """The JSON values that a text is made of; None if it is no JSON, or only numbers and words."""
    text = re.sub(r"(?<=[:\s\[,])(<ID\d+>|TS|F\.FFFF|N)(?=[,\s\]}])", r'"\1"', text)
    decoder, values, at = json.JSONDecoder(), [], 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            return None
        values.append(value)
    return values if any(isinstance(value, dict | list) for value in values) else None


def same_text(flux: str, ours: str) -> bool:
    """Equal as JSON, or the same lines in any order."""
    if flux == ours or sorted(flux.split("\n")) == sorted(ours.split("\n")):
        return True
    theirs, mine = json_values(flux), json_values(ours)
    return theirs is not None and mine is not None and len(theirs) == len(mine) and all(map(matches, theirs, mine))


def matches(flux: Any, ours: Any) -> bool:
    """Every key of Flux's value is in ours with the same value; numbers that were normalised match any."""
    if isinstance(flux, list) and isinstance(ours, list):
        if flux and all(isinstance(one, str) for one in flux) and flux == sorted(flux):
            return set(flux) <= {one for one in ours if isinstance(one, str)}
        return len(flux) == len(ours) and all(map(matches, flux, ours))
    if isinstance(flux, dict):
        return isinstance(ours, dict) and all(key in ours and matches(value, ours[key]) for key, value in flux.items())
    if flux in ("N", "TS", "F.FFFF") or flux is None:
        return True
    if isinstance(flux, str) and isinstance(ours, str) and flux.startswith("rank"):
        return cores(flux) == cores(ours)
    if isinstance(flux, int | float) and isinstance(ours, int | float):
        return flux == ours or (flux > 1e9 and ours > 1e9)
    return flux == ours


def settle(names: list[Any]) -> list[Any]:
    """`release` may fall on either side of `epilog-finish`."""
    out = list(names)
    for i in range(len(out) - 1):
        if out[i][0] == "epilog-finish" and out[i + 1][0] == "release":
            out[i], out[i + 1] = out[i + 1], out[i]
    return out


def compare_jobs(
    report: Report, instance: Instance, normal: Normal, jobs: list[dict[str, Any]], ids: list[int]
) -> None:
    for expected in jobs:
        number = int(expected["job"].removeprefix("ID"))
        if number > len(ids):
            report.differ(f"job ID{number}", "exists", "does not")
            continue
        jobid = ids[number - 1]
        ours = [
            (name, quoted(normal(json.dumps(context, ensure_ascii=False))) if context else {})
            for name, context in events_of(instance, jobid, "eventlog")
        ]
        flux = [
            (item[0], quoted(common(json.dumps(item[1], ensure_ascii=False))) if len(item) > 1 else {})
            for item in expected["events"]
        ]
        ours, flux = settle(ours), settle(flux)
        if flux and flux[-1][0] != "clean":
            ours = ours[: len(flux)]
        if [n for n, _ in ours] != [n for n, _ in flux]:
            report.differ(f"events of ID{number}", " ".join(n for n, _ in flux), " ".join(n for n, _ in ours))
        else:
            for (name, theirs), (_, mine) in zip(flux, ours, strict=True):
                if not matches(theirs, mine):
                    report.differ(f"{name} of ID{number}", theirs, mine)
        for path in ("output", "input"):
            if path in expected:
                mine_streams = streams(events_of(instance, jobid, path))
                theirs_streams = streams(expected[path])
                said = normal(json.dumps(mine_streams, sort_keys=True, ensure_ascii=False))
                wanted = common(json.dumps(theirs_streams, sort_keys=True, ensure_ascii=False))
                if said != wanted:
                    report.differ(f"{path} of ID{number}", wanted, said)


def replay(scenario: dict[str, Any], base: Path) -> Report:
    """Run one scenario and compare."""
    report = Report(scenario["id"])
    size = {"multi": 4, "resource": 2, "perilogN": 2, "housekeeping": 2}.get(scenario["group"], 1)
    folder = base / "w"
    folder.mkdir()
    words = " ".join(step["cmd"] for step in scenario["steps"])
    for name, text in FILES.items():
        if re.search(rf"(?<![\w.-]){name}(?![\w.-])", words):
            (folder / name).write_text(text)
    if re.search(r"(?<![\w.-])d(?![\w.-])", words):
        (folder / "d").mkdir()
    config = CONFIG.get(scenario["id"]) or CONFIG.get(scenario["group"], "")
    with Instance(base, size, config=config.replace("CWD", str(folder))) as instance:
        before: set[str] = set()
        if scenario["id"] in HISTORY:
            subprocess.run(
                ["bash", "-c", HISTORY[scenario["id"]]], env=instance.env, check=False, timeout=60, cwd=folder
            )
            before = set(instance.client("jobs", "-ac0", "-no", "{id.dec}").split())
        results = run_steps(instance, folder, scenario["steps"])
        ids = sorted(
            int(text) for text in instance.client("jobs", "-ac0", "-no", "{id.dec}").split() if text not in before
        )
        spelled: dict[str, str] = {}
        for number, jobid in enumerate(ids, 1):
            for form in ("dec", "hex", "dothex", "kvs", "f58"):
                spelled[instance.client("job", "id", f"--to={form}", str(jobid)).strip()] = f"<ID{number}>"
            f58 = instance.client("job", "id", "--to=f58", str(jobid)).strip()
            spelled["f" + f58[1:]] = f"<ID{number}>"
        hosts = [os.uname().nodename, *(f"node{i}" for i in range(size))]
        normal = Normal(spelled, str(folder), hosts)
        for number, (step, (code, out, err)) in enumerate(zip(scenario["steps"], results, strict=True), 1):
            what = f"step {number} `{step['cmd'][:110]}`"
            if code != step["rc"]:
                report.differ(f"{what}: exit code", step["rc"], code)
            flux_out, our_out = common(step["stdout"]), normal(out)
            flux_err, our_err = common(step["stderr"]), normal(err)
            for pattern, word, _why in TIMING.get(scenario["id"], ()):
                flux_out, our_out, flux_err, our_err = (
                    re.sub(pattern, word, text, flags=re.MULTILINE) for text in (flux_out, our_out, flux_err, our_err)
                )
            if not same_text(flux_out, our_out):
                report.differ(f"{what}: stdout", flux_out, our_out)
            theirs, mine = stderr_lines(flux_err), stderr_lines(our_err, report)
            if theirs != mine:
                report.differ(f"{what}: stderr", theirs, mine)
        compare_jobs(report, instance, normal, scenario["jobs"], ids)
    return report


def main() -> int:
    wanted = sys.argv[1:]
    good = bad = 0
    for scenario in scenarios():
        if wanted and not any(re.fullmatch(pattern, scenario["id"]) for pattern in wanted):
            continue
        with tempfile.TemporaryDirectory(prefix="leveret-replay-") as base:
            report = replay(scenario, Path(base))
        if report.differences:
            bad += 1
            print(f"✗ {scenario['id']}")
            for difference in report.differences:
                print("  " + difference.replace("\n", "\n  "))
        else:
            good += 1
            print(f"✓ {scenario['id']}")
        sys.stdout.flush()
    print(f"{good} the same, {bad} different")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
