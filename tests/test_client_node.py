"""docs/client.mjs in Node, its types and format, and the sample of API.md."""

import os
import re
import shutil
import subprocess
from urllib.request import urlopen

import pytest
from service import ROOT, sign_in

from validators import PROFILE_FIELDS as FIELDS

pytestmark = pytest.mark.long
ANY_PORT = "listen(0, function () { console.log(this.address().port); })"


@pytest.fixture
def service(serve, tmp_path):
    """The service, if there is a Node that can run its client."""
    if not shutil.which("node"):
        pytest.skip("install node")
    version = subprocess.check_output(["node", "--version"], text=True)  # v20.20.2
    if int(version[1:].split(".")[0]) < 20:
        pytest.skip("install node 20 or newer")
    url = f"sqlite:///{tmp_path}/profiles.db"
    return serve(url, OPTIONAL_PROFILE_FIELDS="phone")


@pytest.fixture
def environment(service):
    token = sign_in(service.app, administrator=True).token
    address = f"http://127.0.0.1:{service.port}"
    own = {"SERVICE": address, "PROFILES_URL": address, "PROFILES_TOKEN": token}
    return os.environ | own


def run_all(commands, folder, environment):
    for command in commands:
        options = {"cwd": folder, "env": environment, "timeout": 300}
        options |= {"capture_output": True, "text": True}
        done = subprocess.run(command.split(), **options)
        assert done.returncode == 0, done.stdout + done.stderr


TEST = "node --test-reporter=spec tests/client_node.mjs"


def test_the_client_in_node(environment):
    run_all([TEST], ROOT, environment)


@pytest.mark.skipif(not shutil.which("npx"), reason="install node and npm")
def test_the_client_in_a_bundle(environment, tmp_path):
    """It works, and errors keep their names, after a bundler has renamed classes."""
    file = tmp_path / "tests/client_node.mjs"
    file.parent.mkdir()
    shutil.copy(ROOT / "tests/client_node.mjs", file)
    options = "--bundle --minify --platform=node --format=esm"
    client = f"{ROOT}/docs/client.mjs {options} --outfile=docs/client.mjs"
    run_all([f"npx --yes esbuild@0.28.2 {client}", TEST], tmp_path, environment)


STRICT = (
    "--strict --noUncheckedIndexedAccess --exactOptionalPropertyTypes "
    "--target es2022 --types node"
)


@pytest.mark.skipif(not shutil.which("npm"), reason="install npm")
@pytest.mark.parametrize("version", ["5.0.4", "7.0.2"])
def test_the_types(environment, tmp_path, version):
    """A strict program compiles for Node and for a bundler, and runs.

    Each of its lines that must not compile follows a @ts-expect-error.
    """
    for name in ("docs/client.mjs", "docs/client.d.mts", "tests/client_types.mts"):
        shutil.copy(ROOT / name, tmp_path)
    packages = f"typescript@{version} @types/node@20.19.43"
    tsc = f"npx tsc {STRICT} client_types.mts"
    commands = [
        f"npm install --silent --no-audit --no-fund --prefix . {packages}",
        f"{tsc} --module esnext --moduleResolution bundler",
        f"{tsc} --module nodenext",
        f"{tsc} --module node16",
        "node client_types.mjs",
    ]
    run_all(commands, tmp_path, environment)


def union_of_types(name):
    """The strings of a type of client.d.mts."""
    types = (ROOT / "docs/client.d.mts").read_text()
    union = re.search(f"(?s)export type {name} =(.*?);", types)[1]
    return {*re.findall('(?m)\\| "([a-z-]+)"$', union)}


def test_each_call_in_the_types_has_a_comment():
    """An editor shows it."""
    program = (ROOT / "tests/client_types.mts").read_text()
    types = (ROOT / "docs/client.d.mts").read_text()
    lists = r"(?s)const (?:exported|members|serviceMembers):.*? = \{(.*?)\};"
    for name in re.findall(r"\w+(?=: true)", " ".join(re.findall(lists, program))):
        assert re.search(rf"\*/\n(  |export (const|function|class) ){name}\b", types)


def test_the_fields_in_the_types():
    assert union_of_types("FieldName") == {*FIELDS}


def test_the_codes_in_the_types():
    """They are those of API.md, without those of fields, and those of the client."""
    api = (ROOT / "docs/API.md").read_text()
    cells = re.findall(r"(?m)^\| (`.+`) \| [45][0-9]{2}", api)
    listed = {*re.findall("`([a-z-]+)`", " ".join(cells))}
    listed -= {f"invalid-{name}{end}" for name in FIELDS for end in ("", "-length")}
    own = {"unexpected-answer", "no-answer", "not-sent", "not-stored"}
    assert union_of_types("Code") == listed | own


@pytest.mark.skipif(not shutil.which("npx"), reason="install node and npm")
def test_the_format():
    """It is that of Prettier without settings."""
    names = "docs/client.mjs docs/client.d.mts tests/client_cases.mjs "
    names += "tests/client_node.mjs tests/client_types.mts"
    command = f"npx --yes prettier@3.10.1 --check {names}"
    done = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_sample_of_the_page(environment, tmp_path):
    """Twice: a server answers more than once."""
    (sample,) = re.findall("(?s)```js\n(.*?)```", (ROOT / "docs/API.md").read_text())
    assert sample.endswith('listen(3000, "127.0.0.1");\n')
    file = tmp_path / "sample.mjs"
    file.write_text(sample.replace('listen(3000, "127.0.0.1")', ANY_PORT))
    shutil.copy(ROOT / "docs/client.mjs", tmp_path)
    with subprocess.Popen(
        ["node", file], env=environment, stdout=subprocess.PIPE
    ) as server:
        try:
            port = int(server.stdout.readline())
            for _ in range(2):
                with urlopen(f"http://127.0.0.1:{port}/") as response:
                    assert response.read() == b"Ada King"
        finally:
            server.kill()
