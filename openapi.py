"""The OpenAPI description of this deployment, from the schemas and settings that it runs on."""

from collections.abc import Iterable, Mapping
from typing import Any

from apispec import APISpec
from apispec.ext.marshmallow.openapi import OpenAPIConverter

import validators
from config import Settings
from errors import STATUSES
from models import ListedModel, Profile, Session, public_columns
from validators import APPID, CATALOGUE, IDENTIFIERS

Json = dict[str, Any]

CONVERTER: Any = OpenAPIConverter("3.1.0", None, APISpec("Profiles", "1.0.0", "3.1.0"))
CONVERTER.map_to_openapi_type(validators.Address, "string", "email")
JSON = "application/json"
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
ANY = ("internal-error", "database-unavailable")
SIGNED_IN = ("invalid-appid", "sign-in-required", *ANY)
BODY = ("invalid-account", "invalid-body", "body-too-large", "unsupported-media-type", *SIGNED_IN)
LISTING = ("invalid-limit", "invalid-offset", "invalid-after", "administrator-required", *SIGNED_IN)
TEXT = {"type": "string"}
LINK = {"description": 'The next page, `<…>; rel="next"`, if any.', "schema": TEXT}
SCHEME = {"type": "http", "scheme": "bearer", "description": "The token of a session."}
DATE_PATTERN = "^[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"  # others are read too
RULES: dict[str, Json] = {
    "name": {"description": "A text, its length in Unicode characters."},
    "email": {"description": "An e-mail address."},
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
    "all": {"description": "Everything, whatever limit and offset.", **TEXT, "enum": ["all"]},
    "X-Appid": {"description": "The application.", "pattern": PATTERNS["appid"]},
    "limit": {"description": "How many at most."},
    "offset": {"description": "How many to skip."},
    "after": {"description": "Only those older than this one."},
    "status": {"description": "The service and its database work.", "const": "ok"},
}


def describe(settings: Settings, summaries: Mapping[str, str | None]) -> Json:
    """Return the description, OpenAPI 3.1, as a JSON object. The summaries are by path."""
    update, create = body_schema(settings, creating=False), body_schema(settings, creating=True)
    operations = {
        "/api/user/update-profile": ("patch", body_operation(settings, update, creating=False)),
        "/api/user/create-profile": ("post", body_operation(settings, create, creating=True)),
        "/api/administrator/profiles": ("get", listing_operation(settings, Profile)),
        "/api/administrator/sessions": ("get", listing_operation(settings, Session)),
        "/health": ("get", operation("getHealth", "service", 200, reference("Health"), ANY)),
    }
    objects = {"Health": ["object", "status"], "Error": ["object", "message"]}
    for model in (Profile, Session):
        objects[model.__name__] = [*model.as_objects([("",) * len(public_columns(model))])[0]]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Profiles", "version": "1.0.0"},
        "servers": [{"url": "."}],  # the folder of this description, under any prefix
        "tags": [
            {"name": "user", "description": "A user's own profiles."},
            {"name": "administrator", "description": "All profiles and sessions."},
            {"name": "service", "description": "The service itself."},
        ],
        "paths": {
            path: {method: {"summary": summaries[path], **described}}
            for path, (method, described) in operations.items()
        },
        "components": {
            "securitySchemes": {"session": SCHEME},
            "schemas": {
                "UpdateProfile": update,
                "CreateProfile": create,
                **{name: object_schema(name, names) for name, names in objects.items()},
            },
        },
    }


def object_schema(name: str, properties: Iterable[str]) -> Json:
    """Return the schema of an object that has all these properties and no others."""
    schemas = {each: {**TEXT, **PROPERTIES[each]} for each in properties}
    schemas["object"]["const"] = name.lower()
    required = {"required": list(schemas), "additionalProperties": False}
    return {"type": "object", "properties": schemas, **required}


def body_schema(settings: Settings, *, creating: bool) -> Json:
    """Return the schema of a body, with a description and an example of each field."""
    names, lengths = settings.user_profile_fields, settings.lengths
    schema = validators.profile_schema(names, lengths, creating=creating)
    body: Json = CONVERTER.schema2jsonschema(schema)
    examples = validators.example_body(names, lengths, settings.maximum_post_data_length)
    for name, example in examples.items():
        body["properties"][name] |= RULES[CATALOGUE[name].rule] | {"examples": [example]}
    if creating:
        body["properties"]["default"] = DEFAULT_IN_JSON
    return body


def body_content(name: str, body: Json) -> Json:
    """Return a body by media type, JSON first, because clients take the first.

    The forms, in which every value is a text, have a schema of their own: generated clients choose
    the type by the class of the body.
    """
    fields = body["properties"]
    texts = fields | {"default": DEFAULT_IN_FORMS} if "default" in fields else fields
    # The page forgets a form that equals its example when the other kind of form is chosen.
    example = {field: texts[field]["examples"][0] for field in reversed(texts)}
    form = {"schema": body | {"properties": texts}, "example": example}
    example = {field: fields[field]["examples"][0] for field in fields}
    return {JSON: {"schema": reference(name), "example": example}} | dict.fromkeys(FORMS, form)


def body_operation(settings: Settings, body: Json, *, creating: bool) -> Json:
    """Return update or create: a target in the query, the configured fields in the body."""
    verb, target, done = ("create", "accountid", 201) if creating else ("update", "profileid", 200)
    names, lengths, unknown = settings.user_profile_fields, settings.lengths, f"invalid-{target}"
    schema: Any = validators.profile_schema(names, lengths, creating=creating)
    rules = [rule for field in schema.fields.values() for rule in field.validators]
    codes = (unknown, *dict.fromkeys(rule.error for rule in rules), *BODY)
    described = operation(f"{verb}Profile", "user", done, reference("Profile"), codes, unknown)
    query = parameter("query", target, **TEXT) | {"required": True}
    content = {"required": True, "content": body_content(f"{verb.capitalize()}Profile", body)}
    parameters = [query, parameter("header", "X-Appid", **TEXT)]
    return described | {"parameters": parameters, "requestBody": content}


def listing_operation(settings: Settings, model: ListedModel) -> Json:
    """Return a listing: paging in the query, rows or null as the answer."""
    rows = {"type": ["array", "null"], "items": reference(model.__name__)}
    described = operation(f"list{model.__name__}s", "administrator", 200, rows, LISTING)
    described["responses"]["200"]["headers"] = {"Link": LINK}
    schema = validators.listing_schema(settings.page_size)
    schemas = CONVERTER.schema2jsonschema(schema)["properties"]
    schemas["after"]["pattern"] = PROPERTIES[model.PUBLIC_ID]["pattern"]
    query = [parameter("query", name, **schemas[name]) for name in schemas]
    return described | {"parameters": [*query, parameter("header", "X-Appid", **TEXT)]}


def parameter(place: str, name: str, **schema: Any) -> Json:
    schema |= PROPERTIES[name]
    return {"in": place, "name": name, "description": schema.pop("description"), "schema": schema}


def reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def operation(
    name: str, tag: str, status: int, answer: Json, codes: Iterable[str], unknown: str = ""
) -> Json:
    """Return an operation with its answer, and its errors by status. ``unknown`` is its 404."""
    by_status = {404: [unknown]} if unknown else {}
    for code in codes:
        by_status.setdefault(STATUSES.get(code, 400), []).append(code)
    responses: Json = {str(status): {"description": "Done.", "content": {JSON: {"schema": answer}}}}
    for number in sorted(by_status):
        examples = {c: {"value": {"object": "error", "message": c}} for c in by_status[number]}
        responses[str(number)] = {
            "description": ", ".join(f"`{code}`" for code in examples),
            "content": {JSON: {"schema": reference("Error"), "examples": examples}},
        }
    security: Json = {"security": [{"session": []}] if 401 in by_status else []}
    return {"operationId": name, "tags": [tag], **security, "responses": responses}
