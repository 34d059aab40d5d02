"""docs/client.mjs in Node, its types and format, and the sample of API.md."""

import os
import re
import shutil
import subprocess
from urllib.request import urlopen

import pytest
from service import ROOT, sign_in

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
    return serve(f"sqlite:///{tmp_path}/profiles.db")


@pytest.fixture
def environment(service):
    token = sign_in(service.app, administrator=True).token
    address = f"http://127.0.0.1:{service.port}"
    own = {"SERVICE": address, "PROFILES_URL": address, "PROFILES_TOKEN": token}
    return os.environ | own


def test_the_client_in_node(environment):
    command = ["node", "--test-reporter=spec", ROOT / "tests/client_node.mjs"]
    options = {"capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run(command, env=environment, **options)
    assert done.returncode == 0, done.stdout + done.stderr


STRICT = (
    "--strict --noUncheckedIndexedAccess --exactOptionalPropertyTypes "
    "--module nodenext --target es2022 --types node"
)


@pytest.mark.skipif(not shutil.which("npm"), reason="install npm")
@pytest.mark.parametrize("version", ["5.0.4", "7.0.2"])
def test_the_types(environment, tmp_path, version):
    """A strict program compiles without other settings, and runs."""
    for name in ("docs/client.mjs", "docs/client.d.mts", "tests/client_types.mts"):
        shutil.copy(ROOT / name, tmp_path)
    packages = f"typescript@{version} @types/node@20.19.43"
    for command in (
        f"npm install --silent --no-audit --no-fund --prefix . {packages}",
        f"npx tsc {STRICT} client_types.mts",
        "node client_types.mjs",
    ):
        options = {"cwd": tmp_path, "env": environment}
        options |= {"capture_output": True, "text": True}
        done = subprocess.run(command.split(), **options)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not shutil.which("npx"), reason="install node and npm")
def test_the_format():
    """It is that of Prettier without settings."""
    names = "docs/client.mjs docs/client.d.mts tests/client_cases.mjs "
    names += "tests/client_node.mjs tests/client_types.mts"
    command = f"npx --yes prettier@3.10.1 --check {names}"
    done = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_sample_of_the_page(environment, tmp_path):
    """Twice: the second request finds the account and the profile."""
    (sample,) = re.findall("(?s)```js\n(.*?)```", (ROOT / "docs/API.md").read_text())
    assert sample.endswith("listen(3000);\n")
    file = tmp_path / "sample.mjs"
    file.write_text(sample.replace("listen(3000)", ANY_PORT))
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
