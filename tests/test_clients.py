"""Clients that generators make from the description do all that the service can do."""

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from pathlib import Path

import pytest
from serving import ALL_FIELDS, CREATE, Person, run

from validators import CATALOGUE

pytestmark = pytest.mark.long
ONLY_CI = "pip install -r tests/requirements.txt to run it"
pytest.importorskip("openapi_python_client", reason=ONLY_CI)
TEN_FIELDS = {"USER_PROFILE_FIELDS": ALL_FIELDS, "MINIMUM_PROFILE_FULL_NAME_LENGTH": "40"}
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
PACKAGES = ["typescript@7.0.2", "orval@8.30.0"]  # the compiler, and another generator
UNREACHABLE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ENETUNREACH")

# Programs that use a generated client: create a profile, list it, ask for those older than it.
PYTHON = """
import json, sys
from client import AdministratorApi, ApiClient, Configuration, CreateProfile, UserApi

host, token, accountid, example = sys.argv[1:]
with ApiClient(Configuration(host=host, access_token=token)) as client:
    made = UserApi(client).create_profile(accountid, CreateProfile.from_json(example))
    listings = AdministratorApi(client)
    (listed,) = listings.list_profiles(accountid=accountid, limit=1)
    older = listings.list_profiles(after=made.profileid)
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
        body = description.json["paths"][CREATE]["post"]["requestBody"]
        self.example = body["content"]["application/json"]["example"]
        self.address = f"http://127.0.0.1:{service.port}"

    def run(self, *words):
        """What a command in the folder prints."""
        done = finished(self.folder, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def assert_used(self, *words):
        """The program, which ends with these arguments, does what it is for."""
        person, example = self.person, json.dumps(self.example)
        text = self.run(*words, self.address, person.token, person.accountid, example)
        profileid, name, listed, older = json.loads(text)
        assert (listed, name, older) == (profileid, self.example["full-name"], None)
        assert [each["profileid"] for each in person.profiles()] == [profileid]

    def assert_typescript_used(self, npm, program):
        (self.folder / "use.ts").write_text(program)
        options = ["--strict", "--target", "es2022", "--module", "commonjs", "--types", ""]
        self.run(npm / "tsc", *options, "use.ts")
        self.assert_used("node", "-e", CALL)

    def generate(self, *words):
        """Generate a client with openapi-generator."""
        if not shutil.which("java"):
            pytest.skip("apt-get install default-jre-headless to run it")
        pytest.importorskip("openapi_generator_cli", reason=ONLY_CI)
        self.run("openapi-generator-cli", "generate", "-i", "openapi.json", "-g", *words)


def finished(folder, *words):
    """A command, run in the folder to its end."""
    return subprocess.run(words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)


@pytest.fixture
def world(request, serve, tmp_path):
    settings = getattr(request, "param", TEN_FIELDS)
    return World(serve(f"sqlite:///{tmp_path}/profiles.db", **settings), tmp_path)


@pytest.fixture(scope="module")
def npm(tmp_path_factory):
    """The folder of npm's packages."""
    if not shutil.which("npm"):
        pytest.skip("apt-get install npm to run it")
    folder = tmp_path_factory.mktemp("npm")
    (folder / "package.json").write_text("{}")
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"]
    done = finished(folder, "npm", "install", *options, *PACKAGES)
    if any(each in done.stderr for each in UNREACHABLE):
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
    options = ["--input", "openapi.json", "--output", "client.ts", "--client", "fetch"]
    world.run(npm / "orval", *options)
    world.assert_typescript_used(npm, ORVAL)


@pytest.mark.parametrize("world", [{}, TEN_FIELDS], ids=["two", "ten"], indirect=True)
def test_openapi_python_client(world, monkeypatch):
    name, person, example = f"client_{world.service.port}", world.person, world.example
    command = ["openapi-python-client", "generate", "--meta", "none", "--path", "openapi.json"]
    world.run(*command, "--output-path", name)
    monkeypatch.setattr(sys, "path", [str(world.folder), *sys.path])
    models, package = import_module(f"{name}.models"), import_module(name)

    def call(tag, operation, **arguments):
        """What an operation answers, as an object of the generated classes."""
        module = import_module(f"{name}.api.{tag}.{operation}")
        return module.sync(client=session, **arguments)

    def update(profileid, body):
        return call("user", "update_profile", profileid=profileid, body=body)

    session = package.AuthenticatedClient(
        world.address, token=person.token, raise_on_unexpected_status=True
    )
    with session:
        body = models.CreateProfile.from_dict(example | {"default": True})
        made = call("user", "create_profile", accountid=person.accountid, body=body)
        assert isinstance(made, models.Profile), made
        assert datetime.now(UTC) - made.created_at < timedelta(minutes=1)
        for field in example.keys() - {"default"}:
            assert made.to_dict()[CATALOGUE[field].property] == example[field]

        changed = models.UpdateProfile.from_dict(example | {"contact-email": "king@example.com"})
        day = date(1815, 12, 10) if "dob" in example else None
        if day:
            changed.dob = day
        updated = update(made.profileid, changed)
        assert (updated.profileid, updated.contact_email) == (made.profileid, "king@example.com")
        assert updated.dob == day

        own = {"limit": 1, "accountid": person.accountid}
        assert call("administrator", "list_profiles", **own) == [updated]
        (one,) = call("administrator", "list_sessions", all_=models.ListSessionsAll.ALL)
        assert (one.accountid, one.ended) == (person.accountid, False)
        assert call("administrator", "list_profiles", after=made.profileid) is None
        assert call("service", "get_health").status == "ok"
        with pytest.raises(AttributeError):
            call("administrator", "list_profiles", all_=False)

        unknown = update(f"prof_{'0' * 16}", changed)
        assert unknown == models.Error("error", "invalid-profileid")
        changed.contact_email = "nobody"
        assert update(made.profileid, changed).message == "invalid-contact-email"
        run(world.service, "end-session", person.session["sessionid"])
        ended = call("administrator", "list_profiles")
        assert ended == models.Error("error", "sign-in-required")
