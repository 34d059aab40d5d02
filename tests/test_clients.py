"""Clients that generators make from the description do all that the service can do."""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import date
from importlib import import_module
from pathlib import Path

import pytest
from serving import ALL_FIELDS, CREATE, PROGRAMS, Person, run

from validators import CATALOGUE

pytestmark = pytest.mark.long
pytest.importorskip(
    "openapi_python_client", reason="pip install -r tests/requirements.txt"
)
TEN_FIELDS = {
    "USER_PROFILE_FIELDS": ALL_FIELDS,
    "MINIMUM_PROFILE_FULL_NAME_LENGTH": "40",
}
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
INSTALL = """
npm install --prefix . --no-audit --no-fund --ignore-scripts --fetch-retries=1
typescript@7.0.2 orval@8.30.0
"""
TSC = "--strict --target es2022 --module commonjs"
CALL = """
const { use } = require("./use");
use(process.argv.slice(1)).then((found) => console.log(JSON.stringify(found)));
"""


def run_command(folder, *words):
    """A command, run in the folder to its end."""
    if not shutil.which(words[0], path=PATH):
        pytest.skip("apt-get install default-jre-headless npm to run it")
    environment = {**os.environ, "PATH": PATH}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True
    )


class World:
    """The service, an administrator of it, and a folder with its description."""

    def __init__(self, service, folder):
        self.service = service
        self.folder = folder
        self.person = Person(service, administrator=True)
        self.address = f"http://127.0.0.1:{service.port}"
        description = service.get("/openapi.json")
        (folder / "openapi.json").write_bytes(description.data)
        content = description.json["paths"][CREATE]["post"]["requestBody"]["content"]
        self.example = content["application/json"]["example"]

    def output(self, *words):
        """What a command in the folder prints."""
        done = run_command(self.folder, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def assert_used(self, npm, program):
        """The program in TypeScript does what it is for."""
        shutil.copy(PROGRAMS / program, self.folder / "use.ts")
        self.output(npm / "tsc", *TSC.split(), "--types", "", "use.ts")
        person = self.person
        example = json.dumps(self.example)
        target = self.address, person.token, person.accountid
        text = self.output("node", "-e", CALL, *target, example)
        profileid, name, listed, older, token = json.loads(text)
        assert name == self.example["full-name"]
        assert listed == profileid
        assert older is None
        assert re.fullmatch("[0-9a-f]{64}", token)
        assert [each["profileid"] for each in person.profiles()] == [profileid]


@pytest.fixture
def world(serve, tmp_path):
    return World(serve(f"sqlite:///{tmp_path}/profiles.db", **TEN_FIELDS), tmp_path)


@pytest.fixture(scope="module")
def npm(tmp_path_factory):
    """The folder of the programs that npm installs."""
    folder = tmp_path_factory.mktemp("npm")
    done = run_command(folder, *INSTALL.split())
    if "failed, reason: " in done.stderr:
        pytest.skip("npm's registry cannot be reached")
    assert done.returncode == 0, done.stderr
    return folder / "node_modules/.bin"


def test_openapi_generator(world, npm):
    run_command(world.folder, "java", "-version")  # which it needs
    options = "generate -i openapi.json -g typescript-fetch -o client"
    world.output("openapi-generator-cli", *options.split())
    world.assert_used(npm, "use_openapi_generator.ts")


def test_orval(world, npm):
    options = "--input openapi.json --output client.ts --client fetch"
    world.output(npm / "orval", *options.split())
    world.assert_used(npm, "use_orval.ts")


def test_openapi_python_client(world, monkeypatch):
    options = "generate --meta none --path openapi.json --output-path client"
    world.output("openapi-python-client", *options.split())
    monkeypatch.syspath_prepend(world.folder)
    client = import_module("client")
    models = import_module("client.models")
    person = world.person
    example = world.example

    def call(operation, **arguments):
        """What an operation answers, as an object of the generated classes."""
        module = import_module(f"client.api.{operation}")
        return module.sync(client=session, **arguments)

    def create():
        body = models.CreateProfile.from_dict(example | {"default": True})
        return call(
            "user.create_profile",
            accountid=person.accountid,
            idempotency_key="once",
            body=body,
        )

    with client.AuthenticatedClient(
        world.address, token=person.token, raise_on_unexpected_status=True
    ) as session:
        made = create()
        assert isinstance(made, models.Profile)
        assert create() == made
        for field in example:
            assert made.to_dict()[CATALOGUE[field].property] == example[field]
        email = "king@example.com"
        body = models.UpdateProfile.from_dict(example | {"contact-email": email})
        body.dob = day = date(1815, 12, 10)
        updated = call("user.update_profile", profileid=made.profileid, body=body)
        assert updated.contact_email == email
        assert updated.dob == day
        own = call("administrator.list_profiles", limit=1, accountid=person.accountid)
        assert own == [updated]
        everything = models.ListSessionsAll.ALL
        first, *_ = call("administrator.list_sessions", all_=everything)
        assert not first.ended
        assert call("administrator.list_profiles", after=made.profileid) is None
        target = {"accountid": call("administrator.create_account").accountid}
        body = models.CreateSession(duration=60)
        signed_in = call("administrator.create_session", body=body, **target)
        assert isinstance(signed_in, models.SessionWithToken)
        assert signed_in.duration == 60
        assert call("administrator.end_sessions", **target).count == 1
        assert call("administrator.delete_account", **target).sessions == 1
        run(world.service, "end-session", person.session["sessionid"])
        refused = call("administrator.list_profiles")
        assert refused == models.Error("error", "sign-in-required")
