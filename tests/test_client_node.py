"""docs/client.mjs in Node: runs tests/client_node.mjs beside the service."""

import os
import shutil
import subprocess

import pytest
from service import ROOT, sign_in

pytestmark = pytest.mark.long


def test_the_client_in_node(serve, tmp_path):
    if not shutil.which("node"):
        pytest.skip("install node")
    version = subprocess.check_output(["node", "--version"], text=True)  # v20.20.2
    if int(version[1:].split(".")[0]) < 20:
        pytest.skip("install node 20 or newer")
    service = serve(f"sqlite:///{tmp_path}/profiles.db")
    own = {
        "SERVICE": f"http://127.0.0.1:{service.port}",
        "PROFILES_TOKEN": sign_in(service, administrator=True).token,
    }
    command = ["node", "--test-reporter=spec", ROOT / "tests/client_node.mjs"]
    options = {"capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run(command, env=os.environ | own, **options)
    assert done.returncode == 0, done.stdout + done.stderr
