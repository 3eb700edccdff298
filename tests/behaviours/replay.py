"""Replay scenarios that were measured on real Flux, and compare what is essential.

    python tests/behaviours/replay.py [ID…]       print the differences

A scenario is a list of shell steps, run one after the other in one shell (variables live on) in a folder of its own, on an
instance of its own, with a `flux` on the PATH that is Leveret. What counts as essential:

- **exit codes**: equal.
- **stdout**: equal line by line, after both sides are normalised (job ids by order of submission, times, durations, pids, host names,
  folder, runs of blanks). Lines of steps that end in parallel jobs are compared as a set where the scenario itself sorts nothing.
- **stderr**: the same lines in any order, after the same normalisation; `hint:` lines of ours are ignored, and a usage text
  counts as one line whatever it says.
- **events**: per job the same names in the same order (`release` may fall on either side of `epilog-finish`), and every
  key of Flux's context with the same value in ours; keys that we add are ignored.
- **output, input**: per stream and rank the same bytes and the same end; the same redirects.

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

#: files that the scenarios expect in their folder
FILES: dict[str, str] = {
    "f": "not executable\n",
    "in": "data\n",
    "afile": "data\n",
    "envf": "FOO=bar\nX=${FOO}2\n",
    "mp": "0 echo zero\n1 echo one {{taskid}} 0\n",
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
        for host in self.hosts:
            text = re.sub(rf"(?<![\w$/-]){re.escape(host)}(?![\w-])", "HOST", text)
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
    text = re.sub(r'"pid":\s*\d+', '"pid":N', text).replace("pid NNN", "pid=N")
    text = re.sub(r"\bpid=\d+", "pid=N", text)
    text = re.sub(r"HOST(,HOST)+", "HOST", text)
    text = re.sub(r"<ID(\d+):\w+>", r"<ID\1>", text)
    lines = [re.sub(r"[ \t]+", " ", line).strip() for line in text.split("\n")]
    return "\n".join(lines).strip("\n")


USAGE = re.compile(r"^usage:.*?(?=^\S*: error: |^hint:|\Z)", re.IGNORECASE | re.MULTILINE | re.DOTALL)


def stderr_lines(text: str, report: Report | None = None) -> list[str]:
    """In any order; hints are ours, a usage text is one line."""
    if re.search(r"^usage:", text, re.IGNORECASE | re.MULTILINE):
        return ["(usage)"]
    lines = []
    for line in text.splitlines():
        if line.startswith("hint: "):
            if report is not None:
                report.ignored.append(line)
        elif line.strip():
            lines.append(line)
    return sorted(lines)


class Instance:
    """An instance of its own around one scenario."""

    def __init__(self, base: Path, size: int, cores: int = 2) -> None:
        self.base = base
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("FLUX_", "LEVERET_", "XDG_"))}
        read, write = os.pipe()
        cpus = sorted(os.sched_getaffinity(0))[:cores]
        command = [sys.executable, "-m", "leveret.daemon", "--statedir", f"{base}/state", "--socket", f"{base}/sock"]
        command += ["--size", str(size), "--ready-fd", str(write)]
        self.daemon = subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, cpus)), *command], pass_fds=[write], stdin=subprocess.DEVNULL, env=self.env
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


def run_steps(instance: Instance, folder: Path, steps: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each step, all in one shell."""
    script = []
    for number, step in enumerate(steps):
        script.append(f"{{\n{step['cmd']}\n}} >{folder.parent}/o{number} 2>{folder.parent}/e{number}")
        script.append(f"echo $? >{folder.parent}/r{number}")
    path = folder.parent / "script"
    path.write_text("\n".join(script) + "\n")
    try:
        subprocess.run(
            ["bash", str(path)], cwd=folder, env=instance.env, stdin=subprocess.DEVNULL, timeout=STEP_TIMEOUT_S, check=False
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


def matches(flux: Any, ours: Any) -> bool:
    """Every key of Flux's value is in ours with the same value; numbers that were normalised match any."""
    if isinstance(flux, dict):
        return isinstance(ours, dict) and all(key in ours and matches(value, ours[key]) for key, value in flux.items())
    if flux in ("N", "TS") or flux is None:
        return True
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


def compare_jobs(report: Report, instance: Instance, normal: Normal, jobs: list[dict[str, Any]], ids: list[int]) -> None:
    for expected in jobs:
        number = int(expected["job"].removeprefix("ID"))
        if number > len(ids):
            report.differ(f"job ID{number}", "exists", "does not")
            continue
        jobid = ids[number - 1]
        ours = [
            (name, json.loads(normal(json.dumps(context, ensure_ascii=False))) if context else {})
            for name, context in events_of(instance, jobid, "eventlog")
        ]
        flux = [
            (item[0], json.loads(common(json.dumps(item[1], ensure_ascii=False))) if len(item) > 1 else {})
            for item in expected["events"]
        ]
        ours, flux = settle(ours), settle(flux)
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
    size = 4 if scenario["group"] == "multi" else 1
    folder = base / "w"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "d").mkdir()
    with Instance(base, size) as instance:
        results = run_steps(instance, folder, scenario["steps"])
        ids = sorted(int(text) for text in instance.client("jobs", "-ac0", "-no", "{id.dec}").split())
        spelled: dict[str, str] = {}
        for number, jobid in enumerate(ids, 1):
            for form in ("dec", "hex", "dothex", "kvs", "words", "f58"):
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
            if flux_out != our_out and sorted(flux_out.split("\n")) != sorted(our_out.split("\n")):
                report.differ(f"{what}: stdout", flux_out, our_out)
            flux_err = stderr_lines(common(step["stderr"]))
            our_err = stderr_lines(normal(err), report)
            if flux_err != our_err:
                report.differ(f"{what}: stderr", flux_err, our_err)
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
