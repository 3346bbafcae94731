"""The container image without a container engine: the Dockerfile's steps make its file system in a directory, and a broker starts
in it as the Dockerfile says: with another root, user, environment and network."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from halfmoon.cli.servers import OPTIONS, read_options, settings_from
from halfmoon.errors import UsageError
from tests.packaging.conftest import ROOT
from tests.waiting import stand_still

SIZE_MB_MAX = 120
TOOLS = ("chroot", "find", "ip", "ldconfig", "ldd", "make", "nsenter", "strip", "unshare")
WITHOUT_CARGO = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def steps() -> list[list[tuple[str, str]]]:
    """Return the stages of the Dockerfile, each a list of instructions with their arguments."""
    stages: list[list[tuple[str, str]]] = []
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, arguments = line.partition(" ")
            if name == "FROM":
                stages.append([])
            stages[-1].append((name, arguments))
    return stages


BUILD, IMAGE = steps()
OF_THE_IMAGE = dict(IMAGE)


def context() -> list[str]:
    """Return the files of the repository that `COPY . .` copies, after `.dockerignore`: its last pattern that fits decides."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]

    def copied(name: str) -> bool:
        kept = True
        for pattern in patterns:
            wanted = pattern.removeprefix("!")
            if any(fnmatch(part, wanted) for part in (name, *map(str, Path(name).parents))):
                kept = pattern.startswith("!")
        return kept

    return [name for name in listed.stdout.splitlines() if copied(name) and (ROOT / name).exists()]


def words(instruction: str) -> list[str]:
    """Return the exec form of an instruction."""
    return list(json.loads(OF_THE_IMAGE[instruction].partition("CMD ")[2] or OF_THE_IMAGE[instruction]))


class Container(NamedTuple):
    """A process in the image."""

    root: Path
    process: subprocess.Popen[str]

    def run(self, *command: str) -> tuple[int, str]:
        """Run a command beside it, as `docker exec` and the health check do."""
        enter = [str(shutil.which("nsenter")), "--net", f"--target={self.process.pid}", *inside(self.root), *command]
        ran = subprocess.run(enter, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        return ran.returncode, ran.stdout

    def ends(self) -> tuple[int, str]:
        """Wait for its end; return its exit code and what it wrote."""
        written = self.process.communicate(timeout=120)[0]
        return self.process.returncode, written


def environment() -> dict[str, str]:
    """Return the image's environment variables, and no others."""
    return dict(pair.split("=", 1) for pair in OF_THE_IMAGE["ENV"].split())


def inside(root: Path) -> list[str]:
    """Return the words before a command that run it in the image, as its user."""
    return [str(shutil.which("chroot")), f"--userspec={OF_THE_IMAGE['USER']}", "--groups=", str(root)]


@contextmanager
def container(root: Path, *options: str) -> Iterator[Container]:
    """Run the image with options, in a network of its own; killed at the end when it still runs."""
    up = f'{shutil.which("ip")} link set lo up && exec "$@"'
    command = [str(shutil.which("unshare")), "--net", "/bin/sh", "-c", up, "sh", *inside(root)]
    with subprocess.Popen(
        [*command, *words("ENTRYPOINT"), *(options or words("CMD"))],
        env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        try:
            yield Container(root, process)
        finally:
            process.kill()


def ready(started: Container) -> str:
    """Wait for the line that says that clients may connect; return it. Raises AssertionError when the output ends before."""
    assert started.process.stdout is not None
    said = ""
    for line in started.process.stdout:
        said += line
        if line.startswith("halfmoon ready: "):
            return line
    raise AssertionError(said)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The image's file system, made by the Dockerfile's steps; only Debian's packages are taken as they are here."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if sys.platform != "linux" or os.geteuid() != 0 or missing:
        pytest.skip(f"needs Linux, root{', ' if missing else ''}{', '.join(missing)}")
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode != 0:
        pytest.skip("a process here may have no network of its own")
    there, root = tmp_path_factory.mktemp("context"), tmp_path_factory.mktemp("image")
    for name in context():
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, there / name)
    runs = [arguments for name, arguments in BUILD if name == "RUN" and not arguments.startswith("apt-get")]
    assert len(runs) == 2
    for run in runs:
        command = run.replace("/usr/local/bin/python3", sys.executable).replace(" /image", f" {root}")
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {"PATH": WITHOUT_CARGO}
        ran = subprocess.run(["/bin/sh", "-c", command], cwd=there, env=variables, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    yield root
    shutil.rmtree(root)


@pytest.mark.slow
def test_a_broker_runs_in_it_as_another_user_and_keeps_messages_in_its_volume(image: Path) -> None:
    with container(image, "--insecure") as first:
        assert first.process.pid
        ready(first)
        user = os.stat(f"/proc/{first.process.pid}").st_uid
        sent = first.run("halfmoon", "produce", "--topic", "kept", "first order")
        assert first.run(*words("HEALTHCHECK")) == (0, "")
        first.process.send_signal(getattr(signal, OF_THE_IMAGE["STOPSIGNAL"]))
        assert first.ends()[0] == 0
    assert list((image / "tmp").iterdir()) == [], "what a read-only image would refuse"
    with container(image, "--insecure") as second:
        ready(second)
        read = second.run("halfmoon", "consume", "--topic", "kept", "--count", "1")

    assert f"{user}:{user}" == OF_THE_IMAGE["USER"] != "0:0"
    assert (sent[0], sent[1][:7]) == (0, "SEND_OK"), sent
    assert (read[0], "first order" in read[1]) == (0, True), read


@pytest.mark.slow
def test_without_a_word_on_who_may_reach_it_it_refuses_to_start(image: Path) -> None:
    with container(image) as refused:
        code, said = refused.ends()

    assert (code, "--allow-remote without accounts" in said, "--acl FILE" in said) == (2, True, True), said


@pytest.mark.slow
def test_with_accounts_it_is_healthy_and_takes_requests_from_them_alone(image: Path) -> None:
    account = "accessKey: shop-service\n  secretKey: a long random text\n"
    for name, text in {"accounts.yml": f"accounts:\n- {account}  admin: true\n", "shop.yml": account.replace("\n  ", "\n")}.items():
        (image / "data" / name).write_text(text)
        os.chown(image / "data" / name, *map(int, OF_THE_IMAGE["USER"].split(":")))
        (image / "data" / name).chmod(0o600)
    with container(image, "--acl", "/data/accounts.yml", "--set", "acl_without_tls=true") as started:
        ready(started)
        healthy = started.run(*words("HEALTHCHECK"))
        stranger = started.run("halfmoon", "produce", "--topic", "orders", "unsigned")
        known = started.run("halfmoon", "--credentials", "/data/shop.yml", "produce", "--topic", "orders", "signed")

    assert healthy == (0, "")
    assert stranger[0] != 0, stranger
    assert "No accessKey is configured" in stranger[1]
    assert (known[0], known[1][:7]) == (0, "SEND_OK"), known


@pytest.mark.slow
def test_a_broker_that_does_not_answer_is_unhealthy(image: Path) -> None:
    with container(image, "--insecure") as started:
        ready(started)
        stand_still(started.process.pid)
        code, _ = started.run(*words("HEALTHCHECK"))
        started.process.send_signal(signal.SIGCONT)

    assert code != 0


@pytest.mark.slow
def test_a_volume_that_its_user_cannot_write_is_named_in_words(image: Path) -> None:
    before = (image / "data").stat()
    os.chown(image / "data", 0, 0)
    try:
        with container(image, "--insecure") as refused:
            code, said = refused.ends()
    finally:
        os.chown(image / "data", before.st_uid, before.st_gid)

    assert (code, "/data" in said, "Traceback" in said) == (1, True, False), said


@pytest.mark.slow
def test_it_is_small_and_nobody_can_change_it(image: Path) -> None:
    data, temporary = image / "data", image / "tmp"
    found = {path: path.lstat() for path in image.rglob("*") if data not in path.parents and not path.is_symlink()}

    assert sum(facts.st_size for facts in found.values()) < SIZE_MB_MAX * 1_000_000
    assert [path for path, facts in found.items() if facts.st_uid != 0] == [data]
    assert [path for path, facts in found.items() if facts.st_mode & 0o022] == [temporary]
    assert [path for path, facts in found.items() if stat.S_ISREG(facts.st_mode) and facts.st_mode & 0o6000] == []
    assert not list(image.rglob("bin/*sh")), "a shell"


def test_the_dockerfile_leaves_root_keeps_data_in_a_volume_and_needs_no_shell() -> None:
    values = read_options(OPTIONS["serve"], words("ENTRYPOINT")[2:])

    assert IMAGE[0] == ("FROM", "scratch")
    assert all(int(number) > 0 for number in OF_THE_IMAGE["USER"].split(":"))
    assert values is not None
    assert json.loads(OF_THE_IMAGE["VOLUME"]) == [values["data"]]
    assert OF_THE_IMAGE["EXPOSE"].split() == ["9876", "10911"]
    assert words("HEALTHCHECK")[0] == "python3"


def test_the_context_has_what_wheels_are_built_from_and_nothing_else() -> None:
    tops = {name.partition("/")[0] for name in context()}

    assert {"src", "native", "packaging", "Makefile", "pyproject.toml", "README.md", "LICENSE", "constraints-base.txt"} <= tops
    assert tops & {"tests", "docs", "constraints.txt", ".git"} == set()
    assert {name.split("/")[1] for name in context() if name.startswith("examples/")} == {"demo"}, "which the wheel has"


def test_compose_publishes_to_this_machine_alone_and_has_no_password_of_its_own() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    volumes = yaml.safe_load((ROOT / "compose.yaml").read_text())["volumes"]
    entry = words("ENTRYPOINT")[2:]

    assert {*services} == {"broker", "database"}
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert {volume.partition(":")[0] for volume in service["volumes"]} <= {*volumes}
    assert services["broker"]["volumes"] == [f"messages:{json.loads(OF_THE_IMAGE['VOLUME'])[0]}"]
    assert services["database"]["environment"]["POSTGRES_PASSWORD"].startswith("${POSTGRES_PASSWORD:?")
    assert (
        settings_from("serve", read_options(OPTIONS["serve"], [*entry, *services["broker"]["command"]]) or {}, {}).host == "0.0.0.0"
    )
    with pytest.raises(UsageError, match="--acl FILE"):
        settings_from("serve", read_options(OPTIONS["serve"], entry) or {}, {})
