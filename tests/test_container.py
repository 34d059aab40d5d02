"""Dockerfile and compose.yaml, as far as they can be checked without an engine."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from service import PROCFILE, ROOT, on_sqlite

OPERATING = (ROOT / "docs" / "OPERATING.md").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
INSTRUCTIONS = re.findall(r"(?m)^([A-Z]+) (.+)", DOCKERFILE)
LAST = dict(INSTRUCTIONS)
HEALTH_CHECK = json.loads(LAST["HEALTHCHECK"].partition(" CMD ")[2])


def files_of(patterns):
    return {file for pattern in patterns for file in ROOT.glob(pattern)}


def test_the_image_runs_as_on_other_platforms():
    """And as a user with a number, by which Kubernetes knows that it is not root."""
    assert re.fullmatch(r"python:3\.\d+-slim", LAST["FROM"])
    assert json.loads(LAST["CMD"]) == PROCFILE
    assert f"--uid {int(LAST['USER'])} profiles" in DOCKERFILE


def test_the_image_has_what_the_service_needs_and_no_more(tmp_path):
    """No other file reaches the build, and the user can read those of any clone."""
    ignored, *sent = re.findall(
        r"(?m)^!?([^#\n]+)", (ROOT / ".dockerignore").read_text()
    )
    copied = [words.split()[:-1] for name, words in INSTRUCTIONS if name == "COPY"]
    assert ignored == "*"
    assert files_of(sent) == files_of(sum(copied, []))
    for file in files_of(sent):
        target = tmp_path / file.relative_to(ROOT)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)
        target.chmod(0o600)  # as git makes it under a strict umask
    subprocess.check_call(LAST["RUN"], shell=True, cwd=tmp_path)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.rglob("*.*")} == {0o644}
    gunicorn = [sys.executable, "-m", *PROCFILE, "--check-config"]
    subprocess.check_call(gunicorn, cwd=tmp_path)


@on_sqlite
def test_the_health_check(serve, empty_database_url):
    """It needs no database and no proxy; an empty PORT is 8000, as for gunicorn."""
    service = serve(empty_database_url)

    def check(program, port):
        environment = os.environ | {"http_proxy": "http://127.0.0.1:1", "PORT": port}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, stderr=subprocess.PIPE)

    program = HEALTH_CHECK[2]
    assert check(program, str(service.port)).returncode == 0
    service.stop()
    assert check(program, str(service.port)).returncode == 1
    exits = program.replace("connection.request", "exit(connection.port); ")
    assert check(exits, "").returncode == 8000 % 256


@pytest.mark.long
def test_the_logs_of_compose_are_limited():
    yaml = pytest.importorskip("yaml", reason="pip install -r tests/requirements.txt")
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    logging = {name: service.get("logging") for name, service in services.items()}
    assert logging == dict.fromkeys(services, {"driver": "local"})


def test_the_block_of_compose_keeps_the_password(tmp_path):
    """The line in compose.yaml, and the page's block, each pasted twice."""
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\necho "$@" >> calls\n')
    docker.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = re.search("#   (.*)", (ROOT / "compose.yaml").read_text())[1]
    block = re.search(r"(?s)```sh\n([^`]*docker compose up.*?)```", OPERATING)[1]
    passwords = set()
    for lines in (command, command, block, block):
        subprocess.check_call(["bash", "-c", lines], cwd=tmp_path, env=environment)
        passwords.add((tmp_path / ".env").read_text())
    (password,) = passwords
    assert re.fullmatch("DATABASE_PASSWORD=[0-9a-f]{32}\n", password)
