"""Dockerfile and compose.yaml, as far as they can be checked without an engine."""

import json
import os
import re
import shutil
import subprocess
import sys

from service import PROCFILE, ROOT, on_sqlite

INSTRUCTIONS = re.findall(
    r"(?m)^([A-Z]+) (.+)", (ROOT / "Dockerfile").read_text().replace("\\\n", "")
)
COMPOSE = (ROOT / "compose.yaml").read_text()


def command_of(name):
    """The command of CMD or HEALTHCHECK, as a list."""
    words = dict(INSTRUCTIONS)[name]
    return json.loads(words[words.index("[") :])


def matching(patterns):
    return {file for pattern in patterns for file in ROOT.glob(pattern)}


def copied_files():
    """The files that are copied into the image."""
    copies = [words.split()[:-1] for name, words in INSTRUCTIONS if name == "COPY"]
    return {
        file for patterns in copies for each in patterns for file in ROOT.glob(each)
    }


def test_the_image_runs_the_line_of_the_procfile():
    assert command_of("CMD") == PROCFILE


def test_the_image_has_the_python_of_other_platforms():
    (version,) = (ROOT / ".python-version").read_text().split()
    assert INSTRUCTIONS[0] == ("FROM", f"python:{version}-slim")


def test_the_image_has_what_the_service_needs_and_no_more(tmp_path):
    """No other file reaches the build, such as .env, a database or a test."""
    ignored, *patterns = re.findall(
        r"(?m)^[^#\n].*", (ROOT / ".dockerignore").read_text()
    )
    assert ignored == "*"
    sent = matching(each.removeprefix("!") for each in patterns)
    assert sent == copied_files()
    for file in sent - {ROOT / "requirements.txt"}:
        target = tmp_path / file.relative_to(ROOT)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(file, target)
    gunicorn = [sys.executable, "-m", *PROCFILE, "--check-config"]
    subprocess.check_call(gunicorn, cwd=tmp_path)


@on_sqlite
def test_the_health_check(serve, empty_database_url):
    """It needs no database, and no proxy."""
    service = serve(empty_database_url)
    check = command_of("HEALTHCHECK")
    check[0] = sys.executable
    environment = os.environ | {"http_proxy": "http://127.0.0.1:1"}

    def status():
        environment["PORT"] = str(service.port)
        return subprocess.run(check, env=environment, stderr=subprocess.PIPE).returncode

    assert status() == 0
    service.stop()
    assert status() != 0


def test_compose_holds_no_password():
    """It is a variable, without which nothing starts."""
    passwords = re.findall(r"(?:PASSWORD: |//profiles:)(.+?)[@\n]", COMPOSE)
    required = "${DATABASE_PASSWORD:?is not set; see compose.yaml}"
    assert passwords == [required, "${DATABASE_PASSWORD}", "${DATABASE_PASSWORD}"]
