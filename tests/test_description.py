"""The description at /openapi.json, and its page at /docs/."""

import json
import re

import pytest
from service import CREATE, ROOT, UPDATE, assert_error, sign_in

import openapi
from validators import PROFILE_FIELDS

DOCUMENT = json.loads((ROOT / "openapi.json").read_text())
PATHS = DOCUMENT["paths"]
DOCS = {"/docs", "/docs/", "/docs/API.md", "/docs/<path:name>"}
PAGES = {"/", "/openapi.json", *DOCS}
NAMES = """
createAccount createSession listAccounts listProfiles listSessions endSessions
deleteAccount createProfile updateProfile setDefaultProfile deleteProfile
listOwnProfiles getOwnProfile getOwnAccount listOwnSessions endSession getHealth getLive
"""
TIGHT = {
    "USER_PROFILE_FIELDS": "full-name,display-name,dob,company-name",
    "MINIMUM_PROFILE_COMPANY_NAME_LENGTH": 0,
    "MINIMUM_PROFILE_FULL_NAME_LENGTH": 100,
    "MAXIMUM_PROFILE_FULL_NAME_LENGTH": 100,
    "MAXIMUM_PROFILE_DISPLAY_NAME_LENGTH": 1,
}
TIGHT_LENGTHS = {
    "company-name": (1, 50),
    "display-name": (1, 1),
    "dob": (1, None),
    "full-name": (100, 100),
}
EXAMPLE = "requestBody content application/json example"
CREATE_EXAMPLE = f"paths {CREATE} post {EXAMPLE}"
UPDATE_EXAMPLE = f"paths {UPDATE} patch {EXAMPLE}"


def described(app, place):
    """What is at a place of the description: names, with blanks between them."""
    document = app.test_client().get("/openapi.json").json
    found = document
    for name in place.split():
        found = found[int(name) if isinstance(found, list) else name]
        if "$ref" in found:
            *_, kind, shared = found["$ref"].split("/")
            found = document["components"][kind][shared]
    return found


def test_its_operations_are_those_of_the_service(app):
    served = {
        (rule.rule, method.lower())
        for rule in app.url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
        if rule.rule not in PAGES
    }
    assert served == {(path, method) for path in PATHS for method in PATHS[path]}


def test_the_name_the_tag_and_the_security_of_an_operation():
    """Generated clients have these names."""
    names = []
    for path in PATHS:
        (operation,) = PATHS[path].values()
        names.append(operation["operationId"])
        assert operation["tags"] == [path.split("/")[-2] or "service"]
        assert len(operation["security"]) == path.startswith("/api/")
    assert names == NAMES.split()


@pytest.mark.parametrize(
    "path",
    [path for path in PATHS if "/api/" in path],
)
def test_an_operation_answers_its_callers_alone_as_described(make_app, path):
    """The callers are of another application than the service's own."""
    ((method, operation),) = PATHS[path].items()
    app = make_app(USER_PROFILE_FIELDS=",".join(PROFILE_FIELDS))
    user = sign_in(app, appid="default")
    administrator = sign_in(app, appid="default", administrator=True)
    body = described(app, CREATE_EXAMPLE)
    profile = user.create(json=body | {"default": True}).json
    target = profile | {"sessionid": user.session["sessionid"]}
    caller, another = administrator, user
    if "/user/" in path:
        caller, another = user, administrator
    parameters = described(app, f"paths {path} {method} parameters")
    places = [f"paths {path} {method} parameters {n}" for n in range(len(parameters))]
    names = {described(app, place)["name"] for place in places}
    query = {name: target[name] for name in names & target.keys()}
    request = {"method": method.upper(), "json": body, "query_string": query}
    anonymous = app.test_client().open(path, **request)
    assert_error(anonymous, 401, "sign-in-required")
    for appid, code in (("elsewhere", "sign-in-required"), ("a b", "invalid-appid")):
        response = caller.open(path, headers={"X-Appid": appid}, **request)
        assert response.json["message"] == code
    assert another.open(path, **request).status_code == 403
    response = caller.open(path, **request)
    assert str(response.status_code) in operation["responses"]
    [answer] = response.json if isinstance(response.json, list) else [response.json]
    answer.pop("token", None)  # beside what a session has
    schema = described(app, f"components schemas {answer['object'].title()}")
    assert list(schema["properties"]) == schema["required"] == list(answer)


@pytest.mark.parametrize(
    "settings, lengths",
    [
        ({}, {"contact-email": (1, None), "full-name": (1, 50)}),
        (TIGHT, TIGHT_LENGTHS),
    ],
    ids=["default", "tight"],
)
def test_a_body_has_the_configured_fields_and_an_accepted_example(
    make_app, settings, lengths
):
    """Each field with its minimum and maximum number of characters."""
    app = make_app(**settings)
    schema = described(app, "components schemas CreateProfile")
    properties = schema["properties"]
    assert properties.pop("default") == {"type": ["boolean", "null"]}
    assert schema == described(app, "components schemas UpdateProfile")
    assert schema["required"] == sorted(properties)
    assert lengths == {
        name: (field["minLength"], field.get("maxLength"))
        for name, field in properties.items()
    }
    user = sign_in(app)
    created = user.create(json=described(app, CREATE_EXAMPLE))
    assert created.status_code == 201
    example = described(app, UPDATE_EXAMPLE)
    assert user.update(created.json["profileid"], json=example).status_code == 200
    assert user.caller.profileid is None  # the example does not change the account
    assert app.test_cli_runner().invoke(args=["demo"]).exit_code == 0


def test_the_example_of_an_update_has_the_required_fields_alone(make_app):
    app = make_app(USER_PROFILE_FIELDS="phone", OPTIONAL_PROFILE_FIELDS="dob")
    assert described(app, UPDATE_EXAMPLE) == {"phone": "+44 20 7946 0958"}
    assert [*described(app, CREATE_EXAMPLE)] == ["phone", "dob", "default"]


@pytest.mark.parametrize("name, row", PROFILE_FIELDS.items())
def test_a_property_of_a_profile(app, name, row):
    schema = {"type": ["string", "null"], "examples": [row.example]}
    if row.rule == "date":
        schema["format"] = "date"
    place = f"components schemas Profile properties {row.property}"
    assert described(app, place) == schema


def test_the_codes_of_the_fields(make_app):
    app = make_app(USER_PROFILE_FIELDS="dob", OPTIONAL_PROFILE_FIELDS="full-name")
    response = described(app, f"paths {UPDATE} patch responses 400")
    codes = "`invalid-dob`, `invalid-full-name`, `invalid-full-name-length`"
    assert f"the codes of the fields ({codes})" in response["description"]


def test_a_body_is_described_as_json_alone(app):
    """Generators make a class, or a method, of each type that a body can have."""
    bodies = described(app, "components requestBodies").values()
    assert [[*body["content"]] for body in bodies] == [["application/json"]] * 3


@pytest.mark.parametrize("kind", ["CreateProfile", "UpdateProfile"])
def test_an_optional_field(make_app, kind):
    app = make_app(USER_PROFILE_FIELDS="full-name", OPTIONAL_PROFILE_FIELDS="phone")
    body = described(app, f"components schemas {kind}")
    assert body["required"] == ["full-name"]
    assert body["properties"]["full-name"]["type"] == "string"
    assert body["properties"]["phone"] == {
        "type": ["string", "null"],
        "minLength": 1,
        "pattern": r"^[^\u0000]*$",
    }


def test_a_list_has_its_page_size(make_app):
    limit = described(make_app(PAGE_SIZE=7), "components parameters Limit")
    assert limit["schema"]["default"] == 7


def test_each_app_has_its_own(make_app):
    """Apps with other settings do not share it."""
    apps = {size: make_app(PAGE_SIZE=size) for size in (7, 8)}
    for size, app in apps.items():
        limit = described(app, "components parameters Limit")
        assert limit["schema"]["default"] == size


@pytest.mark.parametrize("path", ["/openapi.json", "/docs/", "/docs/API.md"])
def test_the_documents_are_of_the_version_that_runs(client, monkeypatch, path):
    """Not of the one on the disk, which an upgrade replaces before the restart."""
    before = client.get(path).text
    monkeypatch.setattr(openapi, "ROOT", ROOT / "missing")
    assert client.get(path).text == before


def test_live_has_the_version(app, client):
    """That of the description."""
    health = client.get("/live").json
    assert health == {
        "object": "health",
        "status": "ok",
        "version": DOCUMENT["info"]["version"],
    }
    assert [*health] == described(app, "components schemas Live required")


def test_its_addresses_are_beside_it_under_any_prefix(app):
    assert described(app, "servers 0")["url"] == "."
    reference = described(app, "externalDocs")["url"]
    assert "[API.md](API.md)" in described(app, "info")["description"]  # of the page
    with app.test_client().get(f"/{reference}") as response:
        assert response.text == (ROOT / "docs/API.md").read_text()
        assert response.content_type == "text/plain; charset=utf-8"


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_the_page_is_relative_and_asks_nothing_of_the_network(client, path):
    host = {"Host": "evil.example"}
    assert client.get(path, headers=host).location == "docs/"
    page = client.get("/docs/", headers=host).text
    with client.get("/docs/swagger.js", headers=host) as response:
        script = response.text
    assert 'url: "../openapi.json"' in script
    assert "validatorUrl: null" in script
    assert not re.search("http|evil", page + script)
    assert set(re.findall('(?:href|src)="(.)', page)) == {"."}


def test_the_page_runs_no_script_but_its_own(client):
    """Tokens are typed into it."""
    response = client.get("/docs/")
    assert not re.search("<style|<script>", response.text)
    assert response.headers["Content-Security-Policy"] == (
        "default-src 'none'; connect-src 'self'; img-src 'self' data:; "
        "style-src 'self'; script-src 'self'"
    )
    for path in re.findall('(?:href|src)="./(.+?)"', response.text):
        with client.get(f"/docs/{path}") as file:
            assert file.status_code == 200


@pytest.mark.parametrize(
    "name",
    ["../app.py", "%2e%2e/app.py", "%00", "%ff"],
)
def test_the_page_has_no_other_files(client, name):
    assert_error(client.get(f"/docs/{name}"), 404, "not-found")
