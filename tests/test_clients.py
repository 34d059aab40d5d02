"""A Python client, generated from the description, does all that the service can do."""

import os
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from pathlib import Path

import pytest
from serving import ALL_FIELDS, CREATE, Person, run

pytestmark = pytest.mark.long
generator = pytest.importorskip(
    "openapi_python_client", reason="pip install -r tests/requirements.txt to run it"
)
SETTINGS = [{}, {"USER_PROFILE_FIELDS": ALL_FIELDS, "MINIMUM_PROFILE_FULL_NAME_LENGTH": "40"}]


class Client:
    """The generated package, which uses the session of an administrator."""

    def __init__(self, service, folder):
        folder.mkdir()
        self.service = service
        self.person, self.name = Person(service, administrator=True), f"client_{service.port}"
        self.description, file = service.get("/openapi.json"), folder / "openapi.json"
        file.write_bytes(self.description.data)
        command = ["-m", "openapi_python_client", "generate", "--meta", "none", "--path", file]
        subprocess.run(
            [sys.executable, *command, "--output-path", folder / self.name],
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            check=True,
        )
        sys.path.insert(0, str(folder))
        self.models = import_module(f"{self.name}.models")
        self.session = import_module(self.name).AuthenticatedClient(
            f"http://127.0.0.1:{service.port}",
            token=self.person.token,
            raise_on_unexpected_status=True,
        )

    @property
    def example(self):
        """The example of a body of create-profile."""
        body = self.description.json["paths"][CREATE]["post"]["requestBody"]
        return body["content"]["application/json"]["example"]

    def call(self, tag, operation, **arguments):
        """What an operation answers, as an object of the generated classes."""
        module = import_module(f"{self.name}.api.{tag}.{operation}")
        return module.sync(client=self.session, **arguments)

    def create(self, body):
        return self.call("user", "create_profile", accountid=self.person.accountid, body=body)

    def update(self, profileid, body):
        return self.call("user", "update_profile", profileid=profileid, body=body)


@pytest.fixture(params=SETTINGS, ids=["two fields", "ten fields"])
def client(request, serve, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    service = serve(f"sqlite:///{tmp_path}/profiles.db", **request.param)
    client = Client(service, tmp_path / "client")
    with client.session:
        yield client


def test_a_generated_client_does_everything(client):
    models, example = client.models, client.example
    made = client.create(models.CreateProfile.from_dict(example | {"default": True}))
    assert isinstance(made, models.Profile), made
    assert datetime.now(UTC) - made.created_at < timedelta(minutes=1)
    stored = made.to_dict()
    names = {"full-name": "fullName", "contact-email": "contactEmail", "dob": "dob"}
    assert all(stored[p] == example[name] for name, p in names.items() if name in example)

    changed = models.UpdateProfile.from_dict(example | {"contact-email": "king@example.com"})
    if "dob" in example:
        changed.dob = date(1815, 12, 10)
    updated = client.update(made.profileid, changed)
    assert (updated.profileid, updated.contact_email) == (made.profileid, "king@example.com")
    assert updated.dob == (date(1815, 12, 10) if "dob" in example else None)

    page = client.call("administrator", "list_profiles", limit=1, accountid=client.person.accountid)
    assert page == [updated]
    everything = models.ListSessionsAll.ALL
    (session,) = client.call("administrator", "list_sessions", all_=everything)
    assert (session.accountid, session.ended) == (client.person.accountid, False)
    assert client.call("administrator", "list_profiles", after=made.profileid) is None
    assert client.call("service", "get_health").status == "ok"


def test_a_generated_client_sends_forms_too(client):
    models, form = client.models, client.example | {"default": "true"}
    for kind in ("Data", "Files"):
        body = getattr(models, f"CreateProfile{kind}Body").from_dict(form)
        made = client.create(body)
        body = getattr(models, f"UpdateProfile{kind}Body").from_dict(client.example)
        assert client.update(made.profileid, body).full_name == client.example["full-name"]


def test_a_generated_client_tells_each_error(client):
    models, unknown = client.models, f"prof_{'0' * 16}"
    body = models.UpdateProfile.from_dict(client.example)
    assert client.update(unknown, body) == models.Error("error", "invalid-profileid")
    body.contact_email = "nobody"
    made = client.create(models.CreateProfile.from_dict(client.example))
    assert client.update(made.profileid, body).message == "invalid-contact-email"
    run(client.service, "end-session", client.person.session["sessionid"])
    answer = client.call("administrator", "list_profiles")
    assert answer == models.Error("error", "sign-in-required")


def test_a_generated_client_cannot_ask_for_all_by_mistake(client):
    with pytest.raises(AttributeError):
        client.call("administrator", "list_profiles", all_=False)
