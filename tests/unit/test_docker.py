"""docker/: the image is built where docker is; else what it copies, runs and shares is checked against the code."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import uuid
import zipfile
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from prefetchd.cli.main import cli
from prefetchd.wire.byte_sizes import parse_bytes
from prefetchd.wire.runtime_paths import SHARED_MEMORY, SOCKET_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / "docker"
DOCKERFILE = (DIRECTORY / "Dockerfile").read_text("utf-8")
COMPOSE = yaml.safe_load((DIRECTORY / "docker-compose.yml").read_text("utf-8"))
JOB = yaml.safe_load((DIRECTORY / "kubernetes.yaml").read_text("utf-8"))
POD = JOB["spec"]["template"]["spec"]
README = (DIRECTORY / "README.md").read_text("utf-8")

# docker and Kubernetes write sizes in their own ways.
SUFFIXES = {"gb": "GiB", "mb": "MiB", "Gi": "GiB", "Mi": "MiB"}


def bytes_of(size: str) -> int:
    number, suffix = re.fullmatch(r"(\d+)([A-Za-z]+)", size).groups()
    return parse_bytes(number + SUFFIXES[suffix], "")


def instructions(name: str) -> list[str]:
    whole = re.sub(r"\\\n\s*", "", DOCKERFILE)
    return re.findall(rf"^{name} (.*)$", whole, re.M)


def containers() -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in [*POD["initContainers"], *POD["containers"]]}


def commands() -> list[list[str]]:
    """Every command line of prefetchd's in the files."""
    found = [COMPOSE["services"][name].get("command", []) for name in COMPOSE["services"]]
    found += [COMPOSE["services"]["prefetchd"]["healthcheck"]["test"][1:]]
    found += [each["command"] for each in containers().values()]
    found += [each["startupProbe"]["exec"]["command"] for each in containers().values() if "startupProbe" in each]
    found += [yaml.safe_load(each) for each in instructions("CMD")]
    found += [shlex.split(each) for each in re.findall(r" exec prefetchd (prefetchd .*)$", README, re.M)]
    return [each for each in found if each[:1] == ["prefetchd"]]


def test_every_command_is_found():
    assert len(commands()) == 6


@pytest.mark.parametrize("line", commands(), ids=shlex.join)
def test_every_command_is_one_of_prefetchd_s(line):
    _, verb, *arguments = line
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    command.make_context(verb, list(arguments))


def test_what_is_copied_is_there_and_is_sent_to_docker():
    copied = [each.split()[:-1] for each in instructions("COPY") if not each.startswith("--from=build")]
    sources = [source for each in copied for source in each]
    assert {"prefetchd", "client", "pyproject.toml", "hatch_build.py"} <= set(sources)
    sent = (DIRECTORY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in sent
    assert "*" in sent, "nothing else is sent, be it large or secret"


def test_what_is_copied_is_enough_to_build_the_wheel(tmp_path):
    """What the Dockerfile does, outside of docker."""
    pytest.importorskip("hatchling")
    source = tmp_path / "source"
    source.mkdir()
    for line in instructions("COPY"):
        *names, target = line.split()
        if names[0].startswith("--from"):
            continue
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, source / target)
    (build,) = [each for each in instructions("RUN") if "hatchling build" in each]
    command = [sys.executable, *shlex.split(build.replace("/wheels", str(tmp_path / "wheels")))[1:]]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=100)
    (wheel,) = (tmp_path / "wheels").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"prefetchd/daemon/main.py", "prefetchd_client/loader/loader.py", "prefetchd/docs/docker/README.md"} <= names


def test_the_image_runs_as_a_user_who_owns_the_socket_s_directory():
    (user,) = instructions("USER")
    assert user == "prefetchd"
    made = " ".join(instructions("RUN"))
    (socket,) = re.findall(rf"^ENV {SOCKET_VARIABLE}=(.*)$", DOCKERFILE, re.M)
    assert f"install --directory --mode=0700 --owner={user} {Path(socket).parent}" in made


def test_compose_s_trainer_and_daemon_share_what_they_must():
    services = COMPOSE["services"]
    trainer, daemon, namespaces = services["trainer"], services["prefetchd"], services["namespaces"]
    for key in ("image", "user", "environment", "volumes", "pid", "ipc", "working_dir"):
        assert trainer[key] == daemon[key], key
    assert daemon["pid"] == daemon["ipc"] == "service:namespaces"
    assert namespaces["ipc"] == "shareable"
    assert namespaces["init"] is True
    assert not daemon["user"].startswith("0")
    mounted = [each.split(":")[1] for each in daemon["volumes"]]
    assert str(Path(daemon["environment"][SOCKET_VARIABLE]).parent) in mounted
    assert set(COMPOSE["volumes"]) == {each.split(":")[0] for each in daemon["volumes"] if each[0] not in "./"}
    assert trainer["depends_on"]["prefetchd"]["condition"] == "service_healthy"
    memory = parse_bytes(daemon["command"][daemon["command"].index("--memory") + 1], "")
    assert memory < bytes_of(namespaces["shm_size"])
    assert memory < bytes_of(daemon["mem_limit"])


def test_what_compose_builds_and_runs_is_there():
    for service in COMPOSE["services"].values():
        context = (DIRECTORY / service["build"]["context"]).resolve()
        assert context == ROOT
        assert (context / service["build"]["dockerfile"]).is_file()
    (code,) = [each.split(":")[0] for each in COMPOSE["services"]["trainer"]["volumes"] if each[0] == "."]
    assert (DIRECTORY / code / COMPOSE["services"]["trainer"]["command"][1]).is_file()


def test_the_pod_s_trainer_and_daemon_share_what_they_must():
    trainer, daemon, permissions = (containers()[name] for name in ("trainer", "prefetchd", "permissions"))
    assert POD["shareProcessNamespace"] is True
    assert POD["securityContext"]["runAsUser"] == 1000
    for key in ("image", "env", "volumeMounts"):
        assert trainer[key] == daemon[key], key
    for each in (trainer, daemon):
        assert "securityContext" not in each, "one user for both"
    volumes = {each["name"]: each for each in POD["volumes"]}
    mounts = {each["mountPath"]: volumes[each["name"]] for each in daemon["volumeMounts"]}
    assert mounts[SHARED_MEMORY]["emptyDir"]["medium"] == "Memory"
    (socket,) = [each["value"] for each in daemon["env"] if each["name"] == SOCKET_VARIABLE]
    assert str(Path(socket).parent) in mounts
    assert daemon["restartPolicy"] == "Always", "a sidecar"
    assert permissions["command"] == ["chmod", "1777", *sorted(mounts)]
    assert permissions["volumeMounts"] == daemon["volumeMounts"]
    order = [each["name"] for each in POD["initContainers"]]
    assert order.index("permissions") < order.index("prefetchd")
    memory = parse_bytes(daemon["command"][daemon["command"].index("--memory") + 1], "")
    assert memory < bytes_of(mounts[SHARED_MEMORY]["emptyDir"]["sizeLimit"])
    assert memory < bytes_of(daemon["resources"]["limits"]["memory"])


def is_usable() -> bool:
    docker = shutil.which("docker")
    return (
        docker is not None
        and not subprocess.run(
            [docker, "info", "--format", "{{.ServerVersion}}"], capture_output=True, check=False, timeout=60
        ).returncode
    )


@pytest.mark.timeout(1200)
def test_the_image_is_built_and_has_prefetchd():
    if not is_usable():
        pytest.skip("no docker whose daemon runs here")
    tag = f"prefetchd-test-{uuid.uuid4().hex[:8]}"
    build = ["docker", "build", "-f", str(DIRECTORY / "Dockerfile"), "-t", tag]
    build += ["--build-arg", "TORCH_INDEX=https://download.pytorch.org/whl/cpu", str(ROOT)]
    try:
        done = subprocess.run(build, capture_output=True, text=True, check=False, timeout=1100)
        assert done.returncode == 0, done.stderr
        for command, expected in ((["prefetchd", "--version"], "prefetchd, version "), (["id", "-u"], "1000")):
            inside = ["docker", "run", "--rm", tag, *command]
            said = subprocess.run(inside, capture_output=True, text=True, check=True, timeout=60).stdout
            assert said.startswith(expected)
    finally:
        subprocess.run(["docker", "rmi", "-f", tag], capture_output=True, check=False, timeout=60)
