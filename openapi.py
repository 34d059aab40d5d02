"""The OpenAPI description of this deployment, from the schemas and settings that it runs on."""

from collections.abc import Iterable, Mapping
from typing import Any

from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin

from config import Settings
from errors import STATUSES
from models import ListedModel, Profile, Session
from validators import APPID, CATALOGUE, IDENTIFIERS, LARGEST_INTEGER, profile_schema

Json = dict[str, Any]

INTRODUCTION = """\
A request needs the token of a session, which `flask create-session ACCOUNTID` prints.
A listing is `null` when nothing matches.
A page that has more rows behind it names the next one in its header `Link`.
"""
TAGS = {"user": "Own profiles.", "administrator": "All rows.", "service": "The service itself."}
SCHEME = {"type": "http", "scheme": "bearer", "description": "The token of a session."}
JSON, TEXT = "application/json", {"type": "string"}
ALWAYS = ("bad-request", "internal-error", "database-unavailable")
SIGNED_IN = ("invalid-appid", "sign-in-required", *ALWAYS)
BODY = ("invalid-account", "invalid-body", "body-too-large", "unsupported-media-type", *SIGNED_IN)
LISTING = ("invalid-limit", "invalid-offset", "invalid-after", "administrator-required", *SIGNED_IN)
TARGETS = ("invalid-profileid", "invalid-accountid")  # 400 when not given, 404 when unknown
LINK = {"description": 'The next page, `<…>; rel="next"`, if there is one.', "schema": TEXT}
HEADERS = {
    401: {"WWW-Authenticate": {"description": "Always `Bearer`.", "schema": TEXT}},
    503: {"Retry-After": {"description": "How many seconds to wait.", "schema": TEXT}},
}
BODY_TEXT = "All of the configured fields. A form, urlencoded or multipart, is accepted too."
EMAIL = "An e-mail address. Its domain is not a reserved one, such as `localhost` or `.test`."
DATE = "A complete date. The service also takes other ways to write it."
DAY = {"format": "date", "pattern": "^[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"}
MOMENT = {"format": "date-time"}
RULES: dict[str, Json] = {
    "name": {"description": "A text, its length in Unicode characters."},
    "email": {"description": EMAIL, "format": "email"},
    "date": {"description": DATE, **DAY},
    "text": {"description": "A text that is not empty."},
}
DEFAULT = {"description": "Whether it becomes the account's default profile.", "type": "boolean"}
COUNT = {"type": "integer", "minimum": 0, "maximum": LARGEST_INTEGER}
PARAMETERS: dict[str, Json] = {
    "profileid": {"description": "A profile of the caller's."},
    "accountid": {"description": "The caller's account; in a listing, only its rows."},
    "limit": {"description": "How many at most.", **COUNT},
    "offset": {"description": "How many to skip.", "default": 0, **COUNT},
    "after": {"description": "Only those older than this one."},
    "all": {"description": "Everything, whatever limit and offset.", "enum": ["all"]},
    "X-Appid": {"description": "The application, if not the service's."},
}
PROPERTIES: dict[str, Json] = {
    "profileid": {"examples": ["prof_3f2a9c5d7e1b8046"]},
    "sessionid": {"examples": ["sess_5c8e1f7a2b904d36"]},
    "accountid": {"examples": ["acct_9b1d4e6f8a2c7035"]},
    **{
        row.property: {"type": ["string", "null"], "examples": [row.example]}
        | ({"format": "date"} if row.rule == "date" else {})
        for row in CATALOGUE.values()
    },
    # A type of null alone makes generators write code that does not compile; so does an enum.
    "fields": {"description": "Always null.", "type": ["string", "null"], "const": None},
    **dict.fromkeys("createdAt updatedAt expiresAt lastVerifiedAt".split(), MOMENT),
    "duration": {"description": "In seconds.", "type": "integer"},
    "ended": {"description": "Whether it was ended or has expired.", "type": "boolean"},
    "status": {"const": "ok"},
}
OBJECTS = {"Profile": Profile.PROPERTIES, "Session": Session.PROPERTIES}
OBJECTS |= {"Health": ["object", "status"], "Error": ["object", "message"]}


def describe(settings: Settings, summaries: Mapping[str, str | None]) -> Json:
    """Return the description, OpenAPI 3.1, as a JSON object. The summaries are by path."""
    update_body, patch = body_operation("update", "profileid", 200, settings)
    create_body, post = body_operation("create", "accountid", 201, settings)
    paths = {
        "/api/user/update-profile": {"patch": patch},
        "/api/user/create-profile": {"post": post},
        "/api/administrator/profiles": {"get": listing_operation(Profile, settings)},
        "/api/administrator/sessions": {"get": listing_operation(Session, settings)},
        "/health": {"get": operation("getHealth", "service", 200, reference("Health"), ALWAYS)},
    }
    for path, methods in paths.items():
        for described in methods.values():
            described["summary"] = summaries[path]
    schemas = {"UpdateProfile": update_body, "CreateProfile": create_body}
    for name, names in OBJECTS.items():  # not closed: a new version may add properties
        own = PROPERTIES | {"object": {"const": name.lower()}}
        properties = {each: TEXT | own.get(each, {}) for each in names}
        schemas[name] = {"type": "object", "properties": properties, "required": names}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Profiles", "version": "1.1.0", "description": INTRODUCTION},
        "servers": [{"url": "."}],  # the folder of this description, under any prefix
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": {"securitySchemes": {"session": SCHEME}, "schemas": schemas},
    }


def body_operation(verb: str, target: str, status: int, settings: Settings) -> tuple[Json, Json]:
    """Return the schema of the body of update or create, and the operation."""
    creating = verb == "create"
    schema: Any = profile_schema(settings.user_profile_fields, settings.lengths, creating=creating)
    spec = APISpec("Profiles", "1.1.0", "3.1.0", plugins=[MarshmallowPlugin()])
    body: Json = spec.components.schema("Body", schema=schema).schemas["Body"]
    example: Json = dict(settings.example_body)
    for name in example:
        body["properties"][name] |= RULES[CATALOGUE[name].rule]
    if creating:
        body["properties"]["default"], example["default"] = DEFAULT, False
    media = {"schema": reference(f"{verb.capitalize()}Profile"), "example": example}
    rules = [rule for field in schema.fields.values() for rule in field.validators]
    codes = (f"invalid-{target}", *(rule.error for rule in rules), *BODY)
    query = [parameter("query", target, minLength=1) | {"required": True}]
    described = operation(f"{verb}Profile", "user", status, reference("Profile"), codes, query)
    # JSON alone: with a form beside it, some generators send no Content-Type.
    request = {"description": BODY_TEXT, "required": True, "content": {JSON: media}}
    return body, described | {"requestBody": request}


def listing_operation(model: ListedModel, settings: Settings) -> Json:
    """Return a listing: paging in the query, rows or null as the answer."""
    query = [
        parameter("query", "limit", default=settings.page_size),
        parameter("query", "after", pattern=f"^{IDENTIFIERS[model.PREFIX].pattern}$"),
        *(parameter("query", name) for name in ("offset", "accountid", "all")),
    ]
    rows = {"type": ["array", "null"], "items": reference(model.__name__)}
    described = operation(f"list{model.__name__}s", "administrator", 200, rows, LISTING, query)
    described["responses"]["200"]["headers"] = {"Link": LINK}
    return described


def operation(
    name: str, tag: str, status: int, answer: Json, codes: Iterable[str], query: Iterable[Json] = ()
) -> Json:
    """Return an operation with its answer, and its errors by status."""
    errors: dict[int, Json] = {}
    for code in codes:
        example = {"value": {"object": "error", "message": code}}
        for number in (400, 404) if code in TARGETS else (STATUSES.get(code, 400),):
            errors.setdefault(number, {})[code] = example
    responses: Json = {str(status): {"description": "Done.", "content": {JSON: {"schema": answer}}}}
    for number, examples in sorted(errors.items()):
        responses[str(number)] = {
            "description": ", ".join(f"`{code}`" for code in examples),
            "headers": HEADERS.get(number, {}),
            "content": {JSON: {"schema": reference("Error"), "examples": examples}},
        }
    described = {"operationId": name, "tags": [tag], "responses": responses}
    parameters = [*query, parameter("header", "X-Appid", pattern=f"^{APPID.pattern}$")]
    signed_in = {"parameters": parameters, "security": [{"session": []}]}
    return described | (signed_in if 401 in errors else {"security": []})


def parameter(place: str, name: str, **more: Any) -> Json:
    schema = TEXT | PARAMETERS.get(name, {}) | more
    text = schema.pop("description", "")
    return {"in": place, "name": name, "description": text, "schema": schema}


def reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}
