"""The description and its page."""

import re
from datetime import UTC, datetime

import pytest
from serving import (
    ALL_FIELDS,
    CREATE,
    PROFILES,
    ROOT,
    SESSIONS,
    UPDATE,
    Person,
    assert_error,
    named,
)
from test_administrators import ACCOUNT, DELETION, END, SESSION, send

from errors import HTTP_CODES, STATUSES

TEN_FIELDS = {"USER_PROFILE_FIELDS": ALL_FIELDS}
TIGHT = {
    **TEN_FIELDS,
    "PAGE_SIZE": 7,
    "MINIMUM_PROFILE_COMPANY_NAME_LENGTH": 0,
    "MINIMUM_PROFILE_FULL_NAME_LENGTH": 100,
    "MAXIMUM_PROFILE_FULL_NAME_LENGTH": 100,
    "MAXIMUM_PROFILE_DISPLAY_NAME_LENGTH": 1,
}
TIGHT_LENGTHS = {
    "full-name": (100, 100),
    "display-name": (1, 1),
    "company-name": (1, 50),
}
OF_A_BODY = "400 401 403 404 413 415 500 503"
OF_A_LISTING = "200 400 401 403 500 503"
OF_AN_ACCOUNT = "200 400 401 403 404 500 503"
NEW_ACCOUNT = "201 400 401 403 500 503"
OPERATIONS = [
    ("POST", CREATE, "createProfile", "user", f"201 {OF_A_BODY}"),
    ("PATCH", UPDATE, "updateProfile", "user", f"200 {OF_A_BODY}"),
    ("GET", PROFILES, "listProfiles", "administrator", OF_A_LISTING),
    ("GET", SESSIONS, "listSessions", "administrator", OF_A_LISTING),
    ("POST", ACCOUNT, "createAccount", "administrator", NEW_ACCOUNT),
    ("POST", SESSION, "createSession", "administrator", f"201 {OF_A_BODY}"),
    ("PATCH", END, "endSessions", "administrator", OF_AN_ACCOUNT),
    ("DELETE", DELETION, "deleteAccount", "administrator", OF_AN_ACCOUNT),
    ("GET", "/health", "getHealth", "service", "200 400 500 503"),
]
ERRORS = {
    "400": "BadRequest",
    "401": "Unauthorized",
    "403": "Forbidden",
    "404": "NotFound",
    "413": "BodyTooLarge",
    "415": "UnsupportedMediaType",
    "500": "InternalError",
    "503": "Unavailable",
}
HEADERS = {"401": ["WWW-Authenticate"], "503": ["Retry-After"]}
WITHOUT_A_LOCK = {"/", "/docs", "/docs/", "/docs/<path:path>", "/openapi.json"}
NULLABLE = ["string", "null"]


@pytest.fixture
def client(app):
    return app.test_client()


def described(app):
    return app.test_client().get("/openapi.json").json


def example_body(app, path, method):
    """The body that the page shows and sends."""
    operation = described(app)["paths"][path][method]
    return operation["requestBody"]["content"]["application/json"]["example"]


def test_the_way_to_the_page(client):
    """It works under any prefix."""
    for path in ("/", "/docs"):
        page = client.get(path, follow_redirects=True)
        assert page.request.path == "/docs/"
        (redirect,) = page.history
        assert redirect.headers["Location"] == "docs/"


def test_the_page(client):
    """It asks nothing of the network."""
    headers = {"Host": "evil.example"}
    page = client.get("/docs/", headers=headers).text
    assert '"url": "../openapi.json"' in page
    assert '"validatorUrl": null' in page
    assert "http" not in page
    assert "evil" not in page
    assert set(re.findall('(?:href|src)="(.)', page)) == {"."}


def test_the_files_of_the_page(client):
    file = "/docs/swagger-ui.css"
    with client.get(file, headers={"Range": "bytes=0-9"}) as part:
        assert part.status_code == 206
        assert len(part.data) == 10
    beyond = client.get(file, headers={"Range": "bytes=999999999-"})
    assert_error(beyond, 416, "bad-request")
    for name in ("x", "../app.py", "%2e%2e/app.py", "%00", "%ff"):
        assert_error(client.get(f"/docs/{name}"), 404, "not-found")


def test_no_endpoint_is_without_a_lock(app):
    """A new endpoint checks whose token it is sent, or is listed above.

    The callers are of another application than the service's own.
    """
    served = set()
    for rule in app.url_map.iter_rules():
        if rule.rule not in WITHOUT_A_LOCK:
            methods = rule.methods - {"HEAD", "OPTIONS"}
            served |= {(method, rule.rule) for method in methods}
    assert served == {operation[:2] for operation in OPERATIONS}
    another = Person(app, appid="shop")
    user = Person(app, appid="shop")
    administrator = Person(app, administrator=True, appid="shop")
    owners = {"user": user, "administrator": administrator}
    body = named("Ada")
    target = user.create(body).json
    for method, path, _, owner, _ in OPERATIONS[:-1]:
        request = {"path": path, "json": body, "query_string": target}
        assert another.send(method, **request).status_code == 403
        assert owners[owner].send(method, **request).status_code < 300


def test_operations_and_their_responses(app):
    found = []
    for path, methods in described(app)["paths"].items():
        for method, operation in methods.items():
            name, responses = operation["operationId"], operation["responses"]
            (tag,) = operation["tags"]
            statuses = " ".join(responses)
            found.append((method.upper(), path, name, tag, statuses))
            security = [] if tag == "service" else [{"session": []}]
            assert operation["security"] == security
            for status in responses.keys() & ERRORS:
                reference = f"#/components/responses/{ERRORS[status]}"
                assert responses[status] == {"$ref": reference}
    assert found == OPERATIONS


def test_errors_their_codes_and_an_example_of_each(app):
    responses = described(app)["components"]["responses"]
    assert list(responses) == list(ERRORS.values())
    codes = {}
    for status, name in ERRORS.items():
        response = responses[name]
        listed = re.findall("`([a-z-]+)`", response["description"])
        codes |= dict.fromkeys(listed, int(status))
        headers = response.get("headers", {})
        assert list(headers) == HEADERS.get(status, [])
        content = response["content"]["application/json"]
        assert content["schema"] == {"$ref": "#/components/schemas/Error"}
        example = content["example"]
        expected = ["invalid-appid"] if status == "400" else listed
        assert example.pop("message") in expected
        assert example == {"object": "error"}
    others = {
        "invalid-accountid": 404,
        "invalid-profileid": 404,
        "invalid-body": 400,
        "bad-request": 400,
    }
    of_no_operation = {"not-found": 404, "method-not-allowed": 405}
    of_flask = {code: status for status, code in HTTP_CODES.items()}
    assert codes | of_no_operation == STATUSES | of_flask | others


def test_the_example_of_a_profile(make_app):
    app = make_app(**TEN_FIELDS)
    example = described(app)["components"]["schemas"]["Profile"]["example"]
    assert re.fullmatch("prof_[0-9a-f]{16}", example["profileid"])
    assert re.fullmatch("acct_[0-9a-f]{16}", example["accountid"])
    for name in ("createdAt", "updatedAt"):
        moment = datetime.fromisoformat(example[name])
        assert moment.tzinfo == UTC
    body = example_body(app, CREATE, "post")
    made = Person(app).create(json=body).json
    own = ("profileid", "appid", "accountid", "createdAt", "updatedAt")
    assert example == made | {name: example[name] for name in own}


def test_described_objects_are_the_ones_answered(app, administrator, user):
    schemas = described(app)["components"]["schemas"]
    answers = {
        "Profile": administrator.create(named("Ada")).json,
        "Session": administrator.get(SESSIONS).json[0],
        "Account": send(administrator, ACCOUNT).json,
        "End": send(administrator, END, user.accountid).json,
        "Deletion": send(administrator, DELETION, user.accountid).json,
    }
    for name, answer in answers.items():
        properties = schemas[name]["properties"]
        assert list(properties) == list(answer)
        assert schemas[name]["required"] == list(answer)
        for property, schema in properties.items():
            if property.endswith("At"):
                assert schema["format"] == "date-time"
            for example in schema.get("examples", []):
                identifier = f"{answer[property][:5]}[0-9a-f]{{16}}"
                assert re.fullmatch(identifier, example)
    session, more = schemas["SessionWithToken"]["allOf"]
    assert session == {"$ref": "#/components/schemas/Session"}
    assert list(more["properties"]) == more["required"] == ["token"]
    profile = schemas["Profile"]["properties"]
    assert profile["dob"] == {"type": NULLABLE, "format": "date"}
    assert profile["fields"]["type"] == NULLABLE
    assert profile["fields"]["const"] is None
    body = schemas["CreateProfile"]["properties"]
    assert body["default"] == {"type": ["boolean", "null"]}


def test_the_description_is_of_this_version(app):
    description = described(app)
    changes = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search("(?m)^## ([0-9.]+)$", changes)[1]
    assert description["info"]["version"] == newest
    # Beside /openapi.json, under any prefix.
    assert description["servers"] == [{"url": "."}]
    assert "additionalProperties" not in str(description)  # a later version adds some


def test_described_listings(make_app):
    paths = described(make_app(PAGE_SIZE=7))["paths"]
    for path, prefix in ((PROFILES, "prof"), (SESSIONS, "sess")):
        listing = paths[path]["get"]
        query = {each["name"]: each["schema"] for each in listing["parameters"]}
        assert query["limit"]["default"] == 7
        assert query["offset"]["default"] == 0
        assert query["after"]["pattern"] == f"^{prefix}_[0-9a-f]{{16}}$"
        assert query["all"] == {"type": "string", "enum": ["all"]}
        page = listing["responses"]["200"]
        schema = page["content"]["application/json"]["schema"]
        assert schema["type"] == ["array", "null"]
        assert page["headers"].keys() == {"Link"}


@pytest.mark.parametrize("settings", [{}, TIGHT])
def test_described_bodies(make_app, settings):
    app = make_app(**settings)
    description = described(app)
    fields = sorted(app.config["USER_PROFILE_FIELDS"])
    for name in ("CreateProfile", "UpdateProfile"):
        schema = description["components"]["schemas"][name]
        properties = schema["properties"]
        properties.pop("default", None)
        assert schema["required"] == sorted(properties) == fields
        for field in properties.keys() & TIGHT_LENGTHS:
            bounds = properties[field]["minLength"], properties[field]["maxLength"]
            assert bounds == (TIGHT_LENGTHS[field] if settings else (1, 50))
    reason = "pip install -r tests/requirements.txt to run it"
    validator = pytest.importorskip("openapi_spec_validator", reason=reason)
    validator.OpenAPIV31SpecValidator(description).validate()


@pytest.mark.parametrize("settings", [{}, TEN_FIELDS, TIGHT])
def test_the_examples_are_accepted_as_they_stand(make_app, settings):
    """They do not change the account."""
    app = make_app(**settings)
    person = Person(app)
    created = person.create(json=example_body(app, CREATE, "post"))
    assert created.status_code == 201
    body = example_body(app, UPDATE, "patch")
    updated = person.update(created.json["profileid"], json=body)
    assert updated.status_code == 200
    administrator = Person(app, administrator=True)
    body = example_body(app, SESSION, "post")
    session = send(administrator, SESSION, person.accountid, json=body)
    assert session.json["duration"] == body["duration"]
    assert app.test_cli_runner().invoke(args=["demo"]).exit_code == 0
    with app.app_context():
        assert person.account.profileid is None
