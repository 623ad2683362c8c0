"""The commands of docs/cluster.md as they are written, on two hosts: network namespaces with a link of 100 Mbit/s."""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from dgl_gt.partition import partition

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text()
LIMIT_S = 100
LINK = ["tc", "qdisc", "add", "dev", None, "root", "tbf", "rate", "100mbit", "burst", "64kb", "latency", "50ms"]


def block(word: str) -> str:
    """The block of the page that holds a word."""
    (found,) = (each for each in re.findall(r"```\w+\n(.*?)```", PAGE, re.S) if word in each)
    return found


class Hosts:
    """Two network namespaces whose interfaces are joined, and commands in them."""

    def __init__(self, interface: str, folder: Path):
        self.names = [f"gt{secrets.token_hex(3)}" for _ in range(2)]
        self.interface, self.folder = interface, folder
        self._running = []

    def steps(self):
        first, second = self.names
        for name in self.names:
            yield ["ip", "netns", "add", name]
            yield [*self.inside(name), "ip", "link", "set", "lo", "up"]
        yield [*self.inside(first), "ip", "link", "add", self.interface, "type", "veth", "peer", "name", second]
        yield [*self.inside(first), "ip", "link", "set", second, "netns", second]
        yield [*self.inside(second), "ip", "link", "set", second, "name", self.interface]
        for number, name in enumerate(self.names, 1):
            yield [*self.inside(name), "ip", "address", "add", f"10.0.0.{number}/24", "dev", self.interface]
            yield [*self.inside(name), "ip", "link", "set", self.interface, "up"]
            yield [*self.inside(name), *(each or self.interface for each in LINK)]

    def inside(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", name]

    def start(self, script: str, **of_host: list[str]):
        """Run a script on both hosts; each named variable has a value for each."""
        for number, name in enumerate(self.names):
            own = {key: values[number] for key, values in of_host.items()}
            clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
            path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
            words = [*self.inside(name), "bash", "-c", script]
            self._running.append(
                subprocess.Popen(
                    words,
                    cwd=self.folder,
                    env=clean | own | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            )

    def wait(self) -> tuple[list[int], str]:
        """Return the exit codes, and all that was printed."""
        running, self._running = self._running, []
        deadline = time.monotonic() + LIMIT_S
        while any(each.poll() is None for each in running) and time.monotonic() < deadline:
            time.sleep(0.05)
        codes = [each.poll() for each in running]
        texts = [_ended(each) for each in running]
        assert None not in codes, f"after {LIMIT_S} s the exit codes are {codes}\n" + "\n".join(texts)
        return codes, "\n".join(texts)

    def stop(self):
        for each in self._running:
            _ended(each)


def _ended(process) -> str:
    """What a process has printed, which is killed if it runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[0]


@pytest.fixture
def hosts(request, tmp_path):
    """Two hosts whose private interface has the name that the page gives it, with ``shards`` on a disk that both see."""
    if shutil.which("ip") is None or shutil.which("tc") is None or os.geteuid() != 0:
        pytest.skip("two network namespaces need root, and the commands ip and tc")
    partition("sample:communities?nodes=300&features=8", 2, tmp_path / "shards")
    (tmp_path / "bin").mkdir()
    for name, module in (("torchrun", "torch.distributed.run"), ("dgl-gt", "dgl_gt")):
        _executable(tmp_path / "bin" / name, f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
    made, folders = Hosts(getattr(request, "param", "eth1"), tmp_path), []
    try:
        for step in made.steps():
            done = subprocess.run(step, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(
                    f"this machine gives no namespaces with a slow link: {' '.join(step)}: {done.stderr.strip()}"
                )
        for name in made.names:
            folders.append(Path("/etc/netns", name))
            folders[-1].mkdir(parents=True)
            (folders[-1] / "hosts").write_text("127.0.0.1 localhost\n10.0.0.1 gt-0.gt\n10.0.0.2 gt-1.gt\n")
        yield made
    finally:
        made.stop()
        for name in made.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        for folder in folders:
            shutil.rmtree(folder)


def _executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def test_doctor_and_torchrun_and_a_lost_rank(hosts):
    nodes = {"NODE": ["0", "1"]}
    hosts.start(block("dgl_gt doctor"), **nodes)
    codes, text = hosts.wait()
    assert codes == [0, 0] and "nothing is wrong" in text, text
    assert 5 < float(re.search(r"([\d.]+) MiB/s", text)[1]) < 13, text  # 100 Mbit/s are 11.9 MiB/s
    command = block("--log-dir").strip().replace("--checkpoint-every 5m", "--checkpoint-every 1")
    hosts.start(f"{command} --epochs 12", **nodes)
    codes, text = hosts.wait()
    assert codes == [0, 0], text
    undisturbed = losses(hosts.folder)
    found = [*hosts.folder.glob("logs/*/attempt_0/*/stderr.log")]
    assert len(found) == 2, "a log for each rank"
    shutil.rmtree(hosts.folder / "run")
    hosts.start(f"{command} --epochs 100000 --patience 0", **nodes)
    deadline = time.monotonic() + LIMIT_S
    while len([*(hosts.folder / "run").glob("checkpoint-*")]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    _end_rank(hosts.names[1], signal.SIGKILL)
    codes, text = hosts.wait()
    assert all(codes), (codes, text)
    epoch = max(int(each.stem.rpartition("-")[2]) for each in (hosts.folder / "run").glob("checkpoint-*"))
    hosts.start(f"{command} --epochs {epoch + 3} --patience 0 --resume", **nodes)
    codes, text = hosts.wait()
    assert codes == [0, 0], text
    resumed = losses(hosts.folder)
    assert len(resumed) == epoch + 3
    shared = min(len(resumed), len(undisturbed))
    assert resumed[:shared] == undisturbed[:shared]


def _end_rank(name: str, number: int) -> None:
    """Send a signal to the rank on a host, and not to its launcher."""
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True).stdout.split()
    ranks = [each for each in pids if b"dgl_gt\0train" in Path("/proc", each, "cmdline").read_bytes()]
    ranks = [each for each in ranks if b"torch.distributed.run" not in Path("/proc", each, "cmdline").read_bytes()]
    assert len(ranks) == 1, ranks
    os.kill(int(ranks[0]), number)


@pytest.mark.slow
def test_slurm(hosts):
    """A stand-in for srun starts each task on its host; a job that is queued again goes on, or starts anew."""
    (hosts.folder / "logs").mkdir()
    _executable(hosts.folder / "bin" / "scontrol", "#!/bin/sh\necho 10.0.0.1\necho 10.0.0.2\n")
    script = block("#SBATCH")
    before, _, task = script.partition("srun ")
    assert task.startswith("--kill-on-bad-exit=1 --output 'logs/%t.log' bash -c '")
    as_srun = f"{before}\nbash -c '{task.partition(chr(39) + ' bash -c ' + chr(39))[2].strip()}"
    as_srun = as_srun.replace("--timeout 600", "--timeout 600 --epochs $EPOCHS --patience 0")
    tasks = {"SLURM_PROCID": ["0", "1"], "SLURM_LOCALID": ["0", "0"], "SLURM_NTASKS": ["2", "2"]}
    hosts.start(as_srun, **tasks, EPOCHS=["100000"] * 2)
    begun = hosts.folder / "run" / "metrics.jsonl"
    deadline = time.monotonic() + LIMIT_S
    while not begun.exists() or not begun.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for name in hosts.names:
        _end_rank(name, signal.SIGTERM)
    codes, text = hosts.wait()
    assert codes == [128 + signal.SIGTERM] * 2, text
    done = len(losses(hosts.folder))
    hosts.start(as_srun, **tasks, EPOCHS=[str(done + 2)] * 2)
    codes, text = hosts.wait()
    assert codes == [0, 0] and len(losses(hosts.folder)) == done + 2, text
    record = hosts.folder / "run" / "record.json"  # as if it had been lost before its first checkpoint
    record.write_text(json.dumps(json.loads(record.read_text()) | {"finished": False}))
    for each in record.parent.glob("*.safetensors"):
        each.unlink()
    hosts.start(as_srun, **tasks, EPOCHS=["3"] * 2)
    codes, text = hosts.wait()
    assert codes == [0, 0] and len(losses(hosts.folder)) == 3, text


@pytest.mark.parametrize("hosts", ["eth0"], indirect=True)
def test_kubernetes(hosts):
    """What the manifest gives a pod, on each host."""
    service, job = yaml.safe_load_all(block("kind: Job"))
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    environment = {each["name"]: [each["value"]] * 2 for each in container["env"]}
    host = f"{job['metadata']['name']}-0.{pod['subdomain']}"  # how the Job and the service name the first pod
    assert environment["MASTER_ADDR"] == [host] * 2 and pod["subdomain"] == service["metadata"]["name"]
    assert container["command"] == ["sh", "-c"]
    (text,) = container["args"]
    hosts.start(
        text.replace("--timeout 600", "--timeout 600 --epochs 4"), **environment, JOB_COMPLETION_INDEX=["0", "1"]
    )
    codes, printed = hosts.wait()
    assert codes == [0, 0] and len(losses(hosts.folder)) == 4, printed
