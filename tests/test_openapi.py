"""The description and its page."""

import json
import re

import pytest
from serving import ALL_FIELDS, CREATE, PROFILES, SESSIONS, UPDATE, Person, assert_error, named

from errors import SettingError
from validators import BOUNDED_FIELDS

ALL = {"USER_PROFILE_FIELDS": ALL_FIELDS}
TIGHT = {
    **ALL,
    "MINIMUM_PROFILE_FULL_NAME_LENGTH": 100,
    "MAXIMUM_PROFILE_FULL_NAME_LENGTH": 100,
    "MAXIMUM_PROFILE_DISPLAY_NAME_LENGTH": 1,
    "MINIMUM_PROFILE_COMPANY_NAME_LENGTH": 0,
}
LONG = {"MINIMUM_PROFILE_FULL_NAME_LENGTH": 3_000, "MAXIMUM_PROFILE_FULL_NAME_LENGTH": 4_000}
LENGTHS = {"full-name": (100, 100), "display-name": (1, 1), "company-name": (1, 50)}


def described(app):
    return app.test_client().get("/openapi.json").json


@pytest.fixture
def description(app):
    return described(app)


def operations(description):
    """The path, the method and the operation of each request."""
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def parts(value):
    """Every object within a description."""
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, dict | list):
            yield from parts(part)


# The page


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_the_front_leads_to_the_page(app, path):
    led = app.test_client().get(path)
    assert (led.status_code, led.headers["Location"]) == (302, "docs/")
    page = app.test_client().get(path, follow_redirects=True)
    assert (page.status_code, page.request.path) == (200, "/docs/")
    assert page.content_type == "text/html; charset=utf-8"


def test_the_page_asks_nothing_of_the_network(app):
    page = app.test_client().get("/docs/", headers={"Host": "evil.example"}).text
    config = json.loads(page.split("user_config = ", 1)[1].split(";", 1)[0])
    assert (config["url"], config["validatorUrl"]) == ("../openapi.json", None)
    assert "http" not in page and "evil" not in page
    assert set(re.findall('(?:href|src)="(.)', page)) == {"."}, "relative, under any prefix"


def test_a_file_of_the_page_is_sent_in_parts(app):
    client = app.test_client()
    with client.get("/docs/swagger-ui.css", headers={"Range": "bytes=0-9"}) as part:
        assert (part.status_code, len(part.data)) == (206, 10)
    beyond = client.get("/docs/swagger-ui.css", headers={"Range": "bytes=999999999-"})
    assert_error(beyond, 416, "bad-request")


def test_other_files_are_not_found(app):
    for path in ("/x", "../app.py", "%2e%2e/app.py", "%00", "a%00b", "%ff", "."):
        assert_error(app.test_client().get(f"/docs/{path}"), 404, "not-found")


# Who may


def test_no_endpoint_is_without_a_lock(app, user, administrator, description):
    """A new endpoint asks for a token and checks whose it is, or it is added to those listed."""
    without = {"/", "/docs", "/docs/", "/docs/<path:path>", "/openapi.json"}
    rules = [rule for rule in app.url_map.iter_rules() if rule.rule not in without]
    served = {(rule.rule, way) for rule in rules for way in rule.methods - {"HEAD", "OPTIONS"}}
    assert served == {(path, method) for path, method, _ in operations(description)}

    owners = {"user": user, "administrator": administrator}
    another, elsewhere = Person(app), Person(app, administrator=True, appid="elsewhere")
    elsewhere.headers["X-Appid"] = app.config["SETTINGS"].appid
    targets = {"profileid": user.create(named("Ada")).json["profileid"]}
    targets["accountid"] = user.accountid
    for path, method, operation in operations(description):
        if not operation["security"]:
            assert path == "/health"
            continue
        required = [each["name"] for each in operation["parameters"] if each.get("required")]
        call = dict(method=method, path=path, json=named("Ada"))
        call["query_string"] = {name: targets[name] for name in required}
        assert_error(app.test_client().open(**call), 401, "sign-in-required")
        assert_error(elsewhere.send(**call), 401, "sign-in-required")
        assert another.send(**call).status_code == 403
        assert owners[operation["tags"][0]].send(**call).status_code in (200, 201)


# The description


@pytest.mark.parametrize("settings", [{}, TIGHT])
def test_the_description_is_openapi(make_app, settings):
    validator = pytest.importorskip(
        "openapi_spec_validator", reason="pip install -r tests/requirements.txt to run it"
    )
    validator.OpenAPIV31SpecValidator(described(make_app(**settings))).validate()


def test_clients_find_names_and_the_service(description):
    names = {(m, p): (each["operationId"], each["tags"]) for p, m, each in operations(description)}
    assert names == {
        ("PATCH", UPDATE): ("updateProfile", ["user"]),
        ("POST", CREATE): ("createProfile", ["user"]),
        ("GET", PROFILES): ("listProfiles", ["administrator"]),
        ("GET", SESSIONS): ("listSessions", ["administrator"]),
        ("GET", "/health"): ("getHealth", ["service"]),
    }
    assert [tag["name"] for tag in description["tags"]] == ["user", "administrator", "service"]
    assert description["servers"] == [{"url": "."}]  # beside /openapi.json, under any prefix
    assert len(description["info"]["description"].splitlines()) == 3


def test_everything_has_a_type_or_a_description(description):
    for part in parts(description):
        assert "type" in part or not {"enum", "const"} & part.keys(), part
        assert part.get("description") or not {"in", "scheme"} & part.keys(), part
        assert "additionalProperties" not in part, "a client need not know what a later one adds"
        if "in" in part:
            assert re.fullmatch(r"\^.*\$", part["schema"].get("pattern", "^$"), re.DOTALL), part
        for name, field in part.get("properties", {}).items():
            assert "type" in field, name
    assert all(tag["description"] for tag in description["tags"])


def test_dates_cursors_switches_and_null(description):
    schemas = description["components"]["schemas"]
    profile, session = schemas["Profile"]["properties"], schemas["Session"]["properties"]
    assert (profile["dob"]["format"], profile["dob"]["type"]) == ("date", ["string", "null"])
    assert (profile["fields"]["type"], profile["fields"]["const"]) == (["string", "null"], None)
    moments = [field for name, field in (profile | session).items() if name.endswith("At")]
    assert [field["format"] for field in moments] == ["date-time"] * 4
    assert schemas["CreateProfile"]["properties"]["default"]["type"] == "boolean"
    for path, prefix in ((PROFILES, "prof"), (SESSIONS, "sess")):
        listing = description["paths"][path]["get"]
        query = {each["name"]: each["schema"] for each in listing["parameters"]}
        assert query["after"]["pattern"] == f"^{prefix}_[0-9a-f]{{16}}$"
        assert query["all"] == {"type": "string", "enum": ["all"]}
        answer = listing["responses"]["200"]
        assert answer["content"]["application/json"]["schema"]["type"] == ["array", "null"]
        assert list(answer["headers"]) == ["Link"]


@pytest.mark.parametrize("settings", [{}, TIGHT | {"PAGE_SIZE": 7}])
def test_the_description_is_of_this_deployment(make_app, settings):
    app = make_app(**settings)
    description, fields = described(app), app.config["SETTINGS"].user_profile_fields
    for path in (PROFILES, SESSIONS):
        query = description["paths"][path]["get"]["parameters"]
        defaults = {each["name"]: each["schema"].get("default") for each in query}
        assert (defaults["limit"], defaults["offset"]) == (settings.get("PAGE_SIZE", 10), 0)
    for name in ("CreateProfile", "UpdateProfile"):
        schema = description["components"]["schemas"][name]
        assert schema["required"] == sorted(schema["properties"].keys() - {"default"})
        assert schema["required"] == sorted(fields)
        for field in set(fields) & set(BOUNDED_FIELDS):
            shown = schema["properties"][field]
            bounds = LENGTHS[field] if settings else (1, 50)
            assert (shown["minLength"], shown["maxLength"]) == bounds


@pytest.mark.parametrize("settings", [{}, {"USER_PROFILE_FIELDS": "phone"}, ALL, TIGHT, LONG])
def test_the_examples_are_accepted_as_they_stand(make_app, settings):
    """Also where the longest body is only as long as they are; a shorter one is refused."""
    longest = len(examples(make_app(**settings))[CREATE])
    with pytest.raises(SettingError, match="is too short for a body of"):
        make_app(**settings, MAXIMUM_POST_DATA_LENGTH=longest - 1)
    app = make_app(**settings, MAXIMUM_POST_DATA_LENGTH=longest)
    person, texts = Person(app), examples(app)
    made = person.create(texts[CREATE], content_type="application/json")
    assert made.status_code == 201, made.json
    updated = person.update(made.json["profileid"], texts[UPDATE], content_type="application/json")
    assert updated.status_code == 200, updated.json
    with app.app_context():
        assert person.account.profileid is None, "an example does not change the account"


def examples(app):
    """The example of each body, as the page shows and sends it."""
    paths = described(app)["paths"]
    bodies = {CREATE: paths[CREATE]["post"], UPDATE: paths[UPDATE]["patch"]}
    contents = {path: each["requestBody"]["content"] for path, each in bodies.items()}
    return {p: json.dumps(c["application/json"]["example"], indent=2) for p, c in contents.items()}


FAILED = {"500": ["internal-error"], "503": ["database-unavailable"]}
SIGNED_IN = {"401": ["sign-in-required"], **FAILED}
BODY = {"413": ["body-too-large"], "415": ["unsupported-media-type"], **SIGNED_IN}
PAGING = ["invalid-limit", "invalid-offset", "invalid-after"]


@pytest.mark.parametrize("fields", ["dob,full-name", ALL_FIELDS])
def test_the_description_shows_every_code_in_order(make_app, fields):
    of_fields = []
    for name in fields.split(","):
        of_fields += [f"invalid-{name}", f"invalid-{name}-length"][: 1 + (name in BOUNDED_FIELDS)]
    both = ["invalid-appid", "bad-request"]
    listing = {"400": [*PAGING, *both], "403": ["administrator-required"], **SIGNED_IN}
    expected = dict.fromkeys(("listProfiles", "listSessions"), listing)
    expected["getHealth"] = {"400": ["bad-request"], **FAILED}
    for name, target in (("updateProfile", "profileid"), ("createProfile", "accountid")):
        target = f"invalid-{target}"
        bad = [target, *of_fields, "invalid-body", *both]
        expected[name] = {"400": bad, "403": ["invalid-account"], "404": [target], **BODY}
    found, headers = {}, {"401": ["WWW-Authenticate"], "503": ["Retry-After"]}
    for _, _, operation in operations(described(make_app(USER_PROFILE_FIELDS=fields))):
        codes = found[operation["operationId"]] = {}
        for status, answer in operation["responses"].items():
            if status >= "400":
                codes[status] = list(answer["content"]["application/json"]["examples"])
                assert list(answer["headers"]) == headers.get(status, [])
    assert found == expected


def test_described_objects_are_the_ones_answered(make_app):
    """With examples that one believes."""
    app = make_app(USER_PROFILE_FIELDS=ALL_FIELDS)
    person, description = Person(app, administrator=True), described(app)
    made = person.create(examples(app)[CREATE], content_type="application/json").json
    session, digits = person.get(SESSIONS).json[0], re.compile("_[0-9a-f]{16}$")
    for kind, answer in (("Profile", made), ("Session", session)):
        properties = description["components"]["schemas"][kind]["properties"]
        assert list(properties) == list(answer)
        for name, field in properties.items():
            for example in field.get("examples", []):
                assert digits.sub("_", example) == digits.sub("_", answer[name])
