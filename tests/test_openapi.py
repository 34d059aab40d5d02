"""The description and its page."""

import json
import re
import tomllib

import pytest
from serving import (
    CREATE,
    PROFILES,
    ROOT,
    SESSIONS,
    UPDATE,
    Person,
    assert_error,
    named,
)

from errors import STATUSES
from models import Profile, Session
from validators import BOUNDED_FIELDS, CATALOGUE

ALL = {"USER_PROFILE_FIELDS": ",".join(CATALOGUE)}
TIGHT = {
    **{**ALL, "PAGE_SIZE": 7, "MINIMUM_PROFILE_COMPANY_NAME_LENGTH": 0},
    "MINIMUM_PROFILE_FULL_NAME_LENGTH": 100,
    "MAXIMUM_PROFILE_FULL_NAME_LENGTH": 100,
    "MAXIMUM_PROFILE_DISPLAY_NAME_LENGTH": 1,
}
LONG = {
    "MINIMUM_PROFILE_FULL_NAME_LENGTH": 3_000,
    "MAXIMUM_PROFILE_FULL_NAME_LENGTH": 4_000,
}
LENGTHS = {"full-name": (100, 100), "display-name": (1, 1), "company-name": (1, 50)}
BODY = "400 401 403 404 413 415 500 503"
LISTING = "200 400 401 403 500 503"
OPERATIONS = [
    ("POST", CREATE, "createProfile", "user", f"201 {BODY}"),
    ("PATCH", UPDATE, "updateProfile", "user", f"200 {BODY}"),
    ("GET", PROFILES, "listProfiles", "administrator", LISTING),
    ("GET", SESSIONS, "listSessions", "administrator", LISTING),
    ("GET", "/health", "getHealth", "service", "200 400 500 503"),
]
HEADERS = {"401": ["WWW-Authenticate"], "503": ["Retry-After"]}
NOT_OF_OPERATIONS = {"not-found", "method-not-allowed"}


def described(app):
    return app.test_client().get("/openapi.json").json


def examples(app):
    """The example of each body, as the page shows and sends it."""
    paths = described(app)["paths"]
    bodies = {CREATE: paths[CREATE]["post"], UPDATE: paths[UPDATE]["patch"]}
    kind = "application/json"
    return {
        path: each["requestBody"]["content"][kind]["example"]
        for path, each in bodies.items()
    }


def test_the_page(app):
    """It asks nothing of the network, and works under any prefix."""
    client = app.test_client()
    for path in ("/", "/docs"):
        led, page = client.get(path), client.get(path, follow_redirects=True)
        assert (led.status_code, led.headers["Location"]) == (302, "docs/")
        assert (page.status_code, page.request.path) == (200, "/docs/")
    page = client.get("/docs/", headers={"Host": "evil.example"}).text
    config = json.loads(page.split("user_config = ", 1)[1].split(";", 1)[0])
    assert (config["url"], config["validatorUrl"]) == ("../openapi.json", None)
    assert "http" not in page and "evil" not in page
    assert set(re.findall('(?:href|src)="(.)', page)) == {"."}
    with client.get("/docs/swagger-ui.css", headers={"Range": "bytes=0-9"}) as part:
        assert (part.status_code, len(part.data)) == (206, 10)
    beyond = client.get("/docs/swagger-ui.css", headers={"Range": "bytes=999999999-"})
    assert_error(beyond, 416, "bad-request")
    for path in ("/x", "../app.py", "%2e%2e/app.py", "%00", "a%00b", "%ff", "."):
        assert_error(client.get(f"/docs/{path}"), 404, "not-found")


def test_no_endpoint_is_without_a_lock(app, user, administrator):
    """A new endpoint asks for a token and checks whose it is, or it is added to those listed."""
    without = {"/", "/docs", "/docs/", "/docs/<path:path>", "/openapi.json"}
    rules = [rule for rule in app.url_map.iter_rules() if rule.rule not in without]
    served = {
        (way, rule.rule) for rule in rules for way in rule.methods - {"HEAD", "OPTIONS"}
    }
    assert served == {each[:2] for each in OPERATIONS}
    owners = {"user": user, "administrator": administrator}
    another, elsewhere = Person(app), Person(app, administrator=True, appid="elsewhere")
    elsewhere.headers["X-Appid"] = app.config["APPID"]
    target = {
        "profileid": user.create(named("Ada")).json["profileid"],
        "accountid": user.accountid,
    }
    for method, path, _, owner, _ in OPERATIONS[:-1]:
        call = dict(method=method, path=path, json=named("Ada"), query_string=target)
        assert_error(app.test_client().open(**call), 401, "sign-in-required")
        assert_error(elsewhere.send(**call), 401, "sign-in-required")
        assert another.send(**call).status_code == 403
        assert owners[owner].send(**call).status_code in (200, 201)


def test_operations_statuses_and_their_codes(app):
    found, codes, description = [], {}, described(app)
    for path, methods in description["paths"].items():
        for method, each in methods.items():
            (tag,), responses = each["tags"], each["responses"]
            found.append(
                (method.upper(), path, each["operationId"], tag, " ".join(responses))
            )
            assert each["security"] == ([] if tag == "service" else [{"session": []}])
            for status in responses.keys() - {"200", "201"}:
                name = responses[status]["$ref"].removeprefix("#/components/responses/")
                answer = description["components"]["responses"][name]
                codes |= dict.fromkeys(
                    re.findall("`([a-z-]+)`", answer["description"]), status
                )
                assert [*answer.get("headers", [])] == HEADERS.get(status, [])
                schema = answer["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/Error"}
    assert found == OPERATIONS
    statuses = {code: str(status) for code, status in STATUSES.items()}
    statuses |= {"invalid-accountid": "404", "invalid-profileid": "404"}
    statuses |= {"invalid-body": "400", "bad-request": "400"}
    assert codes == {
        code: statuses[code] for code in statuses.keys() - NOT_OF_OPERATIONS
    }


def test_described_objects_are_the_ones_answered(make_app):
    """With examples that one believes."""
    app = make_app(**ALL)
    person, schemas = (
        Person(app, administrator=True),
        described(app)["components"]["schemas"],
    )
    made = person.create(json=examples(app)[CREATE]).json
    digits = re.compile("_[0-9a-f]{16}$")
    for model, answer in ((Profile, made), (Session, person.get(SESSIONS).json[0])):
        schema = schemas[model.__name__]
        properties = schema["properties"]
        assert [*properties] == schema["required"] == [*answer] == model.PROPERTIES
        for name, field in properties.items():
            moment = {"format": "date-time"} if name.endswith("At") else {}
            assert field == field | moment
            for example in field.get("examples", []):
                assert digits.sub("_", example) == digits.sub("_", answer[name])
    profile = schemas["Profile"]["properties"]
    assert profile["dob"] == {"type": ["string", "null"], "format": "date"}
    assert (profile["fields"]["type"], profile["fields"]["const"]) == (
        ["string", "null"],
        None,
    )
    assert schemas["CreateProfile"]["properties"]["default"] == {"type": "boolean"}


@pytest.mark.parametrize("settings", [{}, TIGHT])
def test_the_description_is_of_this_version_and_deployment(make_app, settings):
    app = make_app(**settings)
    description, fields = described(app), app.config["USER_PROFILE_FIELDS"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest = re.search("(?m)^## ([0-9.]+)$", (ROOT / "CHANGELOG.md").read_text())[1]
    assert description["info"]["version"] == project["version"] == newest
    assert description["servers"] == [
        {"url": "."}
    ]  # beside /openapi.json, under any prefix
    assert "additionalProperties" not in str(description)  # a later version adds some
    for path, prefix in ((PROFILES, "prof"), (SESSIONS, "sess")):
        listing = description["paths"][path]["get"]
        query = {each["name"]: each["schema"] for each in listing["parameters"]}
        defaults = (query["limit"]["default"], query["offset"]["default"])
        assert defaults == (settings.get("PAGE_SIZE", 10), 0)
        assert query["after"]["pattern"] == f"^{prefix}_[0-9a-f]{{16}}$"
        assert query["all"] == {"type": "string", "enum": ["all"]}
        answer = listing["responses"]["200"]
        assert answer["content"]["application/json"]["schema"]["type"] == [
            "array",
            "null",
        ]
        assert list(answer["headers"]) == ["Link"]
    for name in ("CreateProfile", "UpdateProfile"):
        schema = description["components"]["schemas"][name]
        shown = schema["properties"]
        assert (
            schema["required"] == sorted(shown.keys() - {"default"}) == sorted(fields)
        )
        for field in set(fields) & set(BOUNDED_FIELDS):
            bounds = LENGTHS[field] if settings else (1, 50)
            assert (shown[field]["minLength"], shown[field]["maxLength"]) == bounds
    reason = "pip install -r tests/requirements.txt to run it"
    validator = pytest.importorskip("openapi_spec_validator", reason=reason)
    validator.OpenAPIV31SpecValidator(description).validate()


@pytest.mark.parametrize(
    "settings", [{}, {"USER_PROFILE_FIELDS": "phone"}, ALL, TIGHT, LONG]
)
def test_the_examples_are_accepted_as_they_stand(make_app, settings):
    app = make_app(**settings)
    person, bodies = Person(app), examples(app)
    made = person.create(json=bodies[CREATE])
    updated = person.update(made.json.get("profileid"), json=bodies[UPDATE])
    assert (made.status_code, updated.status_code) == (201, 200), (
        made.json,
        updated.json,
    )
    assert app.test_cli_runner().invoke(args=["demo"]).exit_code == 0
    with app.app_context():
        assert person.account.profileid is None, (
            "an example does not change the account"
        )
