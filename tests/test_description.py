"""The description at /openapi.json, and its page at /docs/."""

import json
import re

import pytest
from flask import Blueprint
from service import CREATE, ROOT, assert_error, sign_in

import blueprints
from errors import HTTP_CODES, STATUSES
from validators import PROFILE_FIELDS

PATHS = json.loads((ROOT / "openapi.json").read_text())["paths"]
PAGES = {"/", "/docs", "/docs/", "/docs/<path:path>", "/openapi.json"}
TIGHT = {
    "USER_PROFILE_FIELDS": "full-name,display-name,dob,company-name",
    "MINIMUM_PROFILE_COMPANY_NAME_LENGTH": 0,
    "MINIMUM_PROFILE_FULL_NAME_LENGTH": 100,
    "MAXIMUM_PROFILE_FULL_NAME_LENGTH": 100,
    "MAXIMUM_PROFILE_DISPLAY_NAME_LENGTH": 1,
}
# What a request changes: the default profile, or whether a session has ended.
AS_IN_EXAMPLE = {
    "account": {"profileid": None, "profile": None},
    "session": {"ended": False},
}
EXAMPLE = f"paths {CREATE} post requestBody content application/json example"


def described(app, place):
    """What is at a place of the description: names, with blanks between them."""
    found = app.test_client().get("/openapi.json").json
    for name in place.split():
        found = found[name]
    return found


def shape(value):
    """The JSON of a value, with a 0 for each digit and each random part."""
    return re.sub("[0-9a-f]{16,}|[0-9]", "0", json.dumps(value))


def operation_id(method, path):
    """createProfile, getOwnProfile, listOwnProfiles: generated clients have these."""
    name = path.split("/")[-1]
    if method == "GET":
        verb = "list" if name.endswith("s") else "get"
        name = f"{verb}-own-{name}" if "/user/" in path else f"{verb}-{name}"
    first, *words = name.split("-")
    return first + "".join(word.title() for word in words)


def test_its_operations_are_those_of_the_service(app):
    served = {
        (rule.rule, method)
        for rule in app.url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
        if rule.rule not in PAGES
    }
    assert served == {
        (path, method.upper()) for path in PATHS for method in PATHS[path]
    }


@pytest.mark.parametrize("path", PATHS)
def test_the_name_the_tag_and_the_security_of_an_operation(path):
    ((method, operation),) = PATHS[path].items()
    assert operation["operationId"] == operation_id(method.upper(), path)
    folder = path.split("/")[-2]
    assert operation["tags"] == [folder or "service"]
    assert len(operation["security"]) == path.startswith("/api/")


def test_every_blueprint_is_registered(app):
    made = [each for each in vars(blueprints).values() if isinstance(each, Blueprint)]
    assert set(made) <= set(app.blueprints.values())


@pytest.mark.parametrize("path", [path for path in PATHS if "/api/" in path])
def test_an_operation_answers_its_callers_alone_as_described(make_app, path):
    """The callers are of another application than the service's own."""
    ((method, operation),) = PATHS[path].items()
    app = make_app(USER_PROFILE_FIELDS=",".join(PROFILE_FIELDS))
    user = sign_in(app, appid="default")
    administrator = sign_in(app, appid="default", administrator=True)
    body = described(app, EXAMPLE)
    target = user.create(json=body).json
    request = {
        "method": method.upper(),
        "path": path,
        "json": body,
        "query_string": target,
    }
    caller, another = administrator, user
    if "/user/" in path:
        caller, another = user, administrator
    assert another.open(**request).status_code == 403
    response = caller.open(**request)
    assert str(response.status_code) == list(operation["responses"])[0]
    answer = response.json
    if isinstance(answer, list):
        answer = answer[0]
    answer.pop("token", None)  # beside what a session has
    schema = described(app, f"components schemas {answer['object'].title()}")
    assert list(schema["properties"]) == schema["required"] == list(answer)
    answer |= AS_IN_EXAMPLE.get(answer["object"], {})
    assert shape(schema.get("example", answer)) == shape(answer)


def test_its_errors_are_those_of_the_service_each_with_an_example(app):
    codes = {"not-found": 404, "method-not-allowed": 405}  # of no operation
    responses = described(app, "components responses").values()
    statuses = "400 401 403 404 413 415 500 503".split()
    for status, response in zip(statuses, responses, strict=True):
        listed = re.findall("`([a-z-]+)`", response["description"])
        codes |= dict.fromkeys(listed, int(status))
        example = response["content"]["application/json"]["example"]["message"]
        assert example in [*listed, "invalid-appid"]
    of_flask = {code: status for status, code in HTTP_CODES.items()}
    others = {
        "invalid-accountid": 404,
        "invalid-profileid": 404,
        "invalid-sessionid": 404,
        "invalid-body": 400,
        "bad-request": 400,
    }
    assert codes == STATUSES | of_flask | others


@pytest.mark.parametrize(
    ("settings", "lengths"),
    [
        pytest.param(
            {}, {"contact-email": (1, None), "full-name": (1, 50)}, id="default"
        ),
        pytest.param(
            TIGHT,
            {
                "company-name": (1, 50),
                "display-name": (1, 1),
                "dob": (1, None),
                "full-name": (100, 100),
            },
            id="tight",
        ),
    ],
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
    example = described(app, EXAMPLE)
    created = user.create(json=example)
    assert created.status_code == 201
    assert user.update(created.json["profileid"], json=example).status_code == 200
    assert user.caller.profileid is None  # the example does not change the account
    assert app.test_cli_runner().invoke(args=["demo"]).exit_code == 0


@pytest.mark.parametrize("kind", ["profile", "session"])
def test_a_listing_has_its_page_size_and_its_cursor(make_app, kind):
    place = f"paths /api/administrator/{kind}s get"
    listing = described(make_app(PAGE_SIZE=7), place)
    limit, _, after, *_ = listing["parameters"]
    assert limit["schema"]["default"] == 7
    assert after["schema"]["pattern"] == f"^{kind[:4]}_[0-9a-f]{{16}}$"
    assert "Link" in listing["responses"]["200"]["headers"]


def test_it_is_open_to_the_next_version(app):
    assert described(app, "servers") == [{"url": "."}]  # beside it, under any prefix
    assert "additionalProperties" not in str(described(app, ""))


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_the_page_is_relative_and_asks_nothing_of_the_network(client, path):
    host = {"Host": "evil.example"}
    response = client.get(path, headers=host, follow_redirects=True)
    assert response.history[0].location == "docs/"
    page = response.text
    assert '"url": "../openapi.json"' in page
    assert '"validatorUrl": null' in page
    assert not re.search("http|evil", page)
    assert set(re.findall('(?:href|src)="(.)', page)) == {"."}


@pytest.mark.parametrize("name", ["../app.py", "%2e%2e/app.py", "%00", "%ff"])
def test_the_page_has_no_other_files(client, name):
    assert_error(client.get(f"/docs/{name}"), 404, "not-found")
