"""Clients that generators make from the description do all that the service can do."""

import json
import os
import shutil
import subprocess
import sys
from datetime import date
from importlib import import_module
from pathlib import Path

import pytest
from serving import ALL_FIELDS, CREATE, Person, run

from validators import CATALOGUE

pytestmark = pytest.mark.long
pytest.importorskip(
    "openapi_python_client", reason="pip install -r tests/requirements.txt"
)
TEN_FIELDS = {
    "USER_PROFILE_FIELDS": ALL_FIELDS,
    "MINIMUM_PROFILE_FULL_NAME_LENGTH": "40",
}
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}
NPM = "install --prefix . --no-audit --no-fund --ignore-scripts typescript@7.0.2 orval@8.30.0"

# Programs that use a generated client: create a profile, list it, ask for those older than it.
PYTHON = """
import json, sys
from client import AdministratorApi, ApiClient, Configuration, CreateProfile, UserApi

host, token, accountid, example = sys.argv[1:]
with ApiClient(Configuration(host=host, access_token=token)) as client:
    made = UserApi(client).create_profile(accountid, CreateProfile.from_json(example))
    (listed,) = AdministratorApi(client).list_profiles(accountid=accountid, limit=1)
    older = AdministratorApi(client).list_profiles(after=made.profileid)
print(json.dumps([made.profileid, made.full_name, listed.profileid, older]))
"""
FETCH = """
import { AdministratorApi, Configuration, CreateProfileFromJSON, UserApi } from "./client/index";

export async function use([basePath, accessToken, accountid, example]: string[]) {
  const configuration = new Configuration({ basePath, accessToken });
  const createProfile = CreateProfileFromJSON(JSON.parse(example));
  const made = await new UserApi(configuration).createProfile({ accountid, createProfile });
  const listings = new AdministratorApi(configuration);
  const [listed] = await listings.listProfiles({ accountid, limit: 1 });
  const older = await listings.listProfilesRaw({ after: made.profileid }); // as value() wants rows
  return [made.profileid, made.fullName, listed.profileid, await older.raw.json()];
}
"""
ORVAL = """
import { createProfile, listProfiles } from "./client";

export async function use([base, token, accountid, example]: string[]) {
  const send = globalThis.fetch;
  globalThis.fetch = (path, options) => send(base + path, options);
  const options = { headers: { Authorization: `Bearer ${token}` } };
  const made = await createProfile(JSON.parse(example), { accountid }, options);
  if (made.status !== 201) throw made;
  const listed = await listProfiles({ accountid, limit: 1 }, options);
  const older = await listProfiles({ after: made.data.profileid }, options);
  if (listed.status !== 200 || older.status !== 200) throw [listed, older];
  return [made.data.profileid, made.data.fullName, listed.data?.[0].profileid, older.data];
}
"""
CALL = 'require("./use").use(process.argv.slice(1)).then((a) => console.log(JSON.stringify(a)))'


class World:
    """The service, an administrator of it, and a folder with its description."""

    def __init__(self, service, folder):
        self.service, self.folder = service, folder
        self.person = Person(service, administrator=True)
        description = service.get("/openapi.json")
        (folder / "openapi.json").write_bytes(description.data)
        content = description.json["paths"][CREATE]["post"]["requestBody"]["content"]
        self.example = content["application/json"]["example"]
        self.address = f"http://127.0.0.1:{service.port}"

    def run(self, *words):
        """What a command in the folder prints."""
        done = finished(self.folder, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def generate(self, *words):
        finished(self.folder, "java", "-version")  # which openapi-generator needs
        self.run(
            "openapi-generator-cli", "generate", "-i", "openapi.json", "-g", *words
        )

    def assert_used(self, *words):
        """The program, which ends with these arguments, does what it is for."""
        person = self.person
        words += (
            self.address,
            person.token,
            person.accountid,
            json.dumps(self.example),
        )
        profileid, name, listed, older = json.loads(self.run(*words))
        assert (listed, name, older) == (profileid, self.example["full-name"], None)
        assert [each["profileid"] for each in person.profiles()] == [profileid]

    def assert_typescript_used(self, npm, program):
        (self.folder / "use.ts").write_text(program)
        options = "--strict --target es2022 --module commonjs".split()
        self.run(npm / "tsc", *options, "--types", "", "use.ts")
        self.assert_used("node", "-e", CALL)


def finished(folder, *words):
    """A command, run in the folder to its end."""
    if not shutil.which(words[0], path=ENVIRONMENT["PATH"]):
        pytest.skip("apt-get install default-jre-headless npm to run it")
    return subprocess.run(
        words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True
    )


@pytest.fixture
def world(request, serve, tmp_path):
    settings = getattr(request, "param", TEN_FIELDS)
    return World(serve(f"sqlite:///{tmp_path}/profiles.db", **settings), tmp_path)


@pytest.fixture(scope="module")
def npm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("npm")
    done = finished(folder, "npm", *NPM.split(), "--fetch-retries=1")
    if "failed, reason: " in done.stderr:
        pytest.skip("npm's registry cannot be reached")
    assert done.returncode == 0, done.stderr
    return folder / "node_modules/.bin"


def test_openapi_generator_for_python(world):
    world.generate("python", "--package-name", "client", "-o", ".")
    world.assert_used(sys.executable, "-c", PYTHON)


def test_openapi_generator_for_typescript(world, npm):
    world.generate("typescript-fetch", "-o", "client")
    world.assert_typescript_used(npm, FETCH)


def test_orval(world, npm):
    world.run(
        npm / "orval", *"--input openapi.json --output client.ts --client fetch".split()
    )
    world.assert_typescript_used(npm, ORVAL)


@pytest.mark.parametrize("world", [{}, TEN_FIELDS], ids=["two", "ten"], indirect=True)
def test_openapi_python_client(world, monkeypatch):
    name, person, example = f"client_{world.service.port}", world.person, world.example
    options = f"generate --meta none --path openapi.json --output-path {name}".split()
    world.run("openapi-python-client", *options)
    monkeypatch.setattr(sys, "path", [str(world.folder), *sys.path])
    models, package = import_module(f"{name}.models"), import_module(name)

    def call(operation, **arguments):
        """What an operation answers, as an object of the generated classes."""
        return import_module(f"{name}.api.{operation}").sync(
            client=session, **arguments
        )

    options = {"token": person.token, "raise_on_unexpected_status": True}
    with package.AuthenticatedClient(world.address, **options) as session:
        target = {"accountid": person.accountid, "idempotency_key": "once"}
        target["body"] = models.CreateProfile.from_dict(example | {"default": True})
        made = call("user.create_profile", **target)
        assert isinstance(made, models.Profile) and made == call(
            "user.create_profile", **target
        )
        for field in example.keys() - {"default"}:
            assert made.to_dict()[CATALOGUE[field].property] == example[field]
        changed = models.UpdateProfile.from_dict(
            example | {"contact-email": "king@example.com"}
        )
        if day := date(1815, 12, 10) if "dob" in example else None:
            changed.dob = day
        updated = call("user.update_profile", profileid=made.profileid, body=changed)
        assert (updated.contact_email, updated.dob) == ("king@example.com", day)
        assert call(
            "administrator.list_profiles", limit=1, accountid=person.accountid
        ) == [updated]
        assert not call("administrator.list_sessions", all_=models.ListSessionsAll.ALL)[
            0
        ].ended
        assert call("administrator.list_profiles", after=made.profileid) is None
        run(world.service, "end-session", person.session["sessionid"])
        assert call("administrator.list_profiles") == models.Error(
            "error", "sign-in-required"
        )
