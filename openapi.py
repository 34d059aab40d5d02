"""The OpenAPI description of this deployment, from the schemas and settings that it runs on."""

from collections.abc import Iterable, Mapping
from typing import Any

from apispec import APISpec
from apispec.ext.marshmallow.openapi import OpenAPIConverter

from config import Settings
from errors import STATUSES
from models import ListedModel, Profile, Session, as_objects, public_columns
from validators import APPID, CATALOGUE, IDENTIFIERS, LARGEST_INTEGER, profile_schema

Json = dict[str, Any]

CONVERTER: Any = OpenAPIConverter("3.1.0", None, APISpec("Profiles", "1.0.0", "3.1.0"))
JSON = "application/json"
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
ALWAYS = ("internal-error", "database-unavailable")
SIGNED_IN = ("invalid-appid", "sign-in-required", *ALWAYS)
BODY = ("invalid-account", "invalid-body", "body-too-large", "unsupported-media-type", *SIGNED_IN)
LISTING = ("invalid-limit", "invalid-offset", "invalid-after", "administrator-required", *SIGNED_IN)
TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0, "maximum": LARGEST_INTEGER}
TARGETS = ("invalid-profileid", "invalid-accountid")  # 400 when not given, 404 when unknown
LINK = {"description": 'The next page, `<…>; rel="next"`, if any.', "schema": TEXT}
SCHEME = {"type": "http", "scheme": "bearer", "description": "The token of a session."}
DATE_PATTERN = "^[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"  # others are read too
RULES: dict[str, Json] = {
    "name": {"description": "A text, its length in Unicode characters."},
    "email": {"description": "An e-mail address.", "format": "email"},
    "date": {"description": "A complete date.", "format": "date", "pattern": DATE_PATTERN},
    "text": {"description": "A text that is not empty."},
}
DEFAULT = {"description": "Whether it becomes the account's default profile."}
DEFAULT_IN_JSON = {**DEFAULT, "type": "boolean", "examples": [False]}
DEFAULT_IN_FORMS = {**DEFAULT, **TEXT, "enum": ["true", "false"], "examples": ["false"]}
PATTERNS = {name: f"^{each.pattern}$" for name, each in {**IDENTIFIERS, "appid": APPID}.items()}
PROPERTIES: dict[str, Json] = {
    "object": {"description": "The kind of object."},
    "profileid": {"description": "The identifier of the profile.", "pattern": PATTERNS["prof"]},
    "sessionid": {"description": "The identifier of the session.", "pattern": PATTERNS["sess"]},
    "accountid": {"description": "The identifier of the account.", "pattern": PATTERNS["acct"]},
    "appid": {"description": "The identifier of the application.", "pattern": PATTERNS["appid"]},
    **{
        row.property: {"description": f"The stored `{name}`, or null.", "type": ["string", "null"]}
        | ({"format": "date"} if row.rule == "date" else {})
        for name, row in CATALOGUE.items()
    },
    "fields": {"description": "Always null.", "type": "null"},
    "duration": {"description": "Seconds from its creation to its expiry.", "type": "integer"},
    "csrfToken": {"description": "A random text that belongs to the session."},
    "expiresAt": {"description": "When the session expires.", "format": "date-time"},
    "lastVerifiedAt": {"description": "When the session was created.", "format": "date-time"},
    "ended": {"description": "Whether it was ended or has expired.", "type": "boolean"},
    "createdAt": {"description": "When it was created.", "format": "date-time"},
    "updatedAt": {"description": "When it was last changed.", "format": "date-time"},
    "message": {"description": "The code of the error."},
    "all": {"description": "Everything, whatever limit and offset.", "enum": ["all"]},
    "X-Appid": {"description": "The application.", "pattern": PATTERNS["appid"]},
    "limit": {"description": "How many at most.", **COUNT},
    "offset": {"description": "How many to skip.", **COUNT},
    "after": {"description": "Only those older than this one."},
    "status": {"description": "The service and its database work.", "const": "ok"},
}


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
    objects = {"Health": ["object", "status"], "Error": ["object", "message"]}
    for model in (Profile, Session):  # the properties of an object, here of an empty row
        objects[model.__name__] = list(as_objects(model, [[""] * len(public_columns(model))])[0])
    schemas = {"UpdateProfile": update_body, "CreateProfile": create_body}
    for name, required in objects.items():
        properties = {each: TEXT | PROPERTIES[each] for each in required}
        properties["object"]["const"] = name.lower()
        schemas[name] = {"type": "object", "properties": properties, "required": required}
        schemas[name]["additionalProperties"] = False
    return {
        "openapi": "3.1.0",
        "info": {"title": "Profiles", "version": "1.0.0"},
        "servers": [{"url": "."}],  # the folder of this description, under any prefix
        "tags": [
            {"name": "user", "description": "A user's own profiles."},
            {"name": "administrator", "description": "All profiles and sessions."},
            {"name": "service", "description": "The service itself."},
        ],
        "paths": paths,
        "components": {"securitySchemes": {"session": SCHEME}, "schemas": schemas},
    }


def body_operation(verb: str, target: str, status: int, settings: Settings) -> tuple[Json, Json]:
    """Return the schema of the body of update or create, and the operation.

    JSON is the first media type, because clients take the first. The forms, in which every value
    is a text, have a schema of their own: generated clients choose the type by the body's class.
    """
    creating = verb == "create"
    schema: Any = profile_schema(settings.user_profile_fields, settings.lengths, creating=creating)
    body: Json = CONVERTER.schema2jsonschema(schema)
    fields: Json = body["properties"]
    for name, text in settings.example_body().items():
        fields[name] |= RULES[CATALOGUE[name].rule] | {"examples": [text]}
    texts = {**fields}
    if creating:
        fields["default"], texts["default"] = DEFAULT_IN_JSON, DEFAULT_IN_FORMS
    example = {name: fields[name]["examples"][0] for name in fields}
    content = {JSON: {"schema": reference(f"{verb.capitalize()}Profile"), "example": example}}
    # Reversed, because the page forgets a form that equals its example when its type is changed.
    reordered = {name: texts[name]["examples"][0] for name in reversed(texts)}
    form = {"schema": body | {"properties": texts}, "example": reordered}
    request = {"required": True, "content": content | dict.fromkeys(FORMS, form)}
    rules = [rule for field in schema.fields.values() for rule in field.validators]
    codes = (f"invalid-{target}", *dict.fromkeys(rule.error for rule in rules), *BODY)
    query = [parameter("query", target) | {"required": True}]
    described = operation(f"{verb}Profile", "user", status, reference("Profile"), codes, query)
    return body, described | {"requestBody": request}


def listing_operation(model: ListedModel, settings: Settings) -> Json:
    """Return a listing: paging in the query, rows or null as the answer."""
    query = [
        parameter("query", "limit", default=settings.page_size),
        parameter("query", "offset", default=0),
        parameter("query", "after", pattern=PROPERTIES[model.PUBLIC_ID]["pattern"]),
        *(parameter("query", name) for name in ("accountid", "all")),
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
            "content": {JSON: {"schema": reference("Error"), "examples": examples}},
        }
    described = {"operationId": name, "tags": [tag], "responses": responses}
    parameters = [*query, parameter("header", "X-Appid")]
    signed_in = {"parameters": parameters, "security": [{"session": []}]}
    return described | (signed_in if 401 in errors else {"security": []})


def parameter(place: str, name: str, **schema: Any) -> Json:
    schema = TEXT | schema | PROPERTIES[name]
    return {"in": place, "name": name, "description": schema.pop("description"), "schema": schema}


def reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}
