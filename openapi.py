"""The OpenAPI description of this deployment, from the schemas and settings that it runs on."""

from collections.abc import Iterable, Mapping
from typing import Any

from apispec import APISpec
from apispec.ext.marshmallow.openapi import OpenAPIConverter
from peewee import IntegerField

from config import Settings
from errors import STATUSES
from models import ListedModel, Profile, Session, public_columns
from validators import APPID, CATALOGUE, IDENTIFIERS, listing_schema, profile_schema

Json = dict[str, Any]

CONVERTER: Any = OpenAPIConverter("3.1.0", None, APISpec("Profiles", "1.0.0", "3.1.0"))
JSON = "application/json"
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
ANY = ("internal-error", "database-unavailable")
SIGNED_IN = ("invalid-appid", "sign-in-required", *ANY)
BODY = ("invalid-account", "invalid-body", "body-too-large", "unsupported-media-type", *SIGNED_IN)
LISTING = ("invalid-limit", "invalid-offset", "invalid-after", "administrator-required", *SIGNED_IN)
TEXT = {"type": "string"}
HEADERS: dict[int, Json] = {
    401: {"WWW-Authenticate": {"description": "`Bearer`.", "schema": TEXT}},
    503: {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}},
}
LINK = {"description": 'The next page, `<…>; rel="next"`, if any.', "schema": TEXT}
SCHEME = {"type": "http", "scheme": "bearer", "description": "The token of a session."}
DATE_PATTERN = "^[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"  # others are read too
RULES: dict[str, Json] = {
    "name": {"description": "a text, its length in Unicode characters."},
    "email": {"description": "an e-mail address."},
    "date": {"description": "a complete date.", "format": "date", "pattern": DATE_PATTERN},
    "text": {"description": "a text that is not empty."},
}
YES_OR_NO = {"type": "boolean", "examples": [False]}
YES_OR_NO_AS_TEXT = {"type": "string", "enum": ["true", "false"], "examples": ["false"]}
PROPERTIES = {
    "object": "The kind of object.",
    "profileid": "The identifier of the profile.",
    "sessionid": "The identifier of the session.",
    "accountid": "The identifier of the account.",
    "appid": "The identifier of the application.",
    **{row.property: f"The stored `{name}`, null until set." for name, row in CATALOGUE.items()},
    "fields": "Always null.",
    "duration": "Seconds from the creation of the session to its expiry.",
    "csrfToken": "A random text that belongs to the session.",
    "expiresAt": "When the session expires.",
    "lastVerifiedAt": "When the session was created.",
    "ended": "Whether the session was ended or has expired.",
    "createdAt": "When it was created.",
    "updatedAt": "When it was last changed.",
    "message": "The code of the error.",
    "status": "The service and its database work.",
}
FORMATS = {
    **{row.property: {"format": "date"} for row in CATALOGUE.values() if row.rule == "date"},
    **{name: {"format": "date-time"} for name in PROPERTIES if name.endswith("At")},
    "accountid": {"pattern": f"^{IDENTIFIERS['acct'].pattern}$"},
    "profileid": {"pattern": f"^{IDENTIFIERS['prof'].pattern}$"},
    "sessionid": {"pattern": f"^{IDENTIFIERS['sess'].pattern}$"},
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
                "Profile": object_schema(Profile),
                "Session": object_schema(Session),
                "UpdateProfile": update,
                "CreateProfile": create,
                "Health": closed_object({"object": constant("health"), "status": constant("ok")}),
                "Error": closed_object({"object": constant("error"), "message": TEXT}),
            },
        },
    }


def object_schema(model: ListedModel) -> Json:
    """Return the schema of a model's objects, from its columns."""
    schemas: Json = {"fields": {"type": "null"}, "ended": {"type": "boolean"}}
    schemas["object"] = constant(model.__name__.lower())
    for name, column in model._meta.fields.items():
        kind = "integer" if isinstance(column, IntegerField) else "string"
        schemas[name] = {"type": [kind, "null"] if column.null else kind} | FORMATS.get(name, {})
    names = model.as_objects([("",) * len(public_columns(model))])[0]
    return closed_object({name: schemas[name] for name in names})


def closed_object(properties: Json) -> Json:
    """Return the schema of an object that has all these properties and no others."""
    described = {n: {**schema, "description": PROPERTIES[n]} for n, schema in properties.items()}
    required = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": described, **required}


def constant(value: str) -> Json:
    return {**TEXT, "const": value}


def reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def body_schema(settings: Settings, *, creating: bool) -> Json:
    """Return the schema of a body, with a description and an example of each field."""
    schema = profile_schema(settings.user_profile_fields, settings.lengths, creating=creating)
    body: Json = CONVERTER.schema2jsonschema(schema)
    for name in settings.user_profile_fields:
        row, field = CATALOGUE[name], body["properties"][name]
        field |= RULES[row.rule]
        field["description"] = f"{name.replace('-', ' ').capitalize()}, {field['description']}"
        least = min(field["minLength"], settings.maximum_post_data_length)
        repeated = f"{row.example} " * (least // len(row.example) + 1)
        field["examples"] = [repeated[: max(least, len(row.example))][: field.get("maxLength")]]
    if creating:
        body["properties"]["default"] |= YES_OR_NO
    return body


def body_content(name: str, body: Json) -> Json:
    """Return a body by media type, JSON first, because clients take the first.

    The forms, in which every value is a text, have a schema of their own: generated clients choose
    the type by the class of the body.
    """
    fields = body["properties"]
    texts = {f: s | YES_OR_NO_AS_TEXT if f == "default" else s for f, s in fields.items()}
    # The page forgets a form that equals its example when the other kind of form is chosen.
    example = {field: texts[field]["examples"][0] for field in reversed(texts)}
    form = {"schema": body | {"properties": texts}, "example": example}
    example = {field: fields[field]["examples"][0] for field in fields}
    return {JSON: {"schema": reference(name), "example": example}} | dict.fromkeys(FORMS, form)


def body_operation(settings: Settings, body: Json, *, creating: bool) -> Json:
    """Return update or create: a target in the query, the configured fields in the body."""
    schema = profile_schema(settings.user_profile_fields, settings.lengths, creating=creating)
    rules = [rule for field in schema.fields.values() for rule in field.validators]
    field_codes = dict.fromkeys(rule.error for rule in rules if hasattr(rule, "error"))
    verb, target, done = ("create", "accountid", 201) if creating else ("update", "profileid", 200)
    codes = (f"invalid-{target}", *field_codes, *BODY)
    described = operation(f"{verb}Profile", "user", done, reference("Profile"), codes)
    described["responses"]["404"] = error_response(404, [f"invalid-{target}"])
    query = parameter(target, {"description": PROPERTIES[target]} | TEXT | FORMATS[target])
    content = {"required": True, "content": body_content(f"{verb.capitalize()}Profile", body)}
    parameters = [query | {"required": True}, appid_header(settings)]
    return described | {"parameters": parameters, "requestBody": content}


def listing_operation(settings: Settings, model: ListedModel) -> Json:
    """Return a listing: paging in the query, rows or null as the answer."""
    rows = {"type": ["array", "null"], "items": reference(model.__name__)}
    described = operation(f"list{model.__name__}s", "administrator", 200, rows, LISTING)
    described["responses"]["200"]["headers"] = {"Link": LINK}
    schemas = CONVERTER.schema2jsonschema(listing_schema(settings.page_size))["properties"]
    schemas["accountid"] |= FORMATS["accountid"]
    schemas["after"] |= FORMATS[model.PUBLIC_ID]
    schemas["all"] |= {"type": "string", "enum": ["all"]}
    query = [parameter(name, schema) for name, schema in schemas.items()]
    return described | {"parameters": [*query, appid_header(settings)]}


def appid_header(settings: Settings) -> Json:
    schema = {"type": "string", "pattern": f"^{APPID.pattern}$", "default": settings.appid}
    return {"in": "header", "name": "X-Appid", "description": PROPERTIES["appid"], "schema": schema}


def parameter(name: str, schema: Json) -> Json:
    return {"in": "query", "name": name, "description": schema.pop("description"), "schema": schema}


def operation(name: str, tag: str, status: int, answer: Json, codes: Iterable[str]) -> Json:
    """Return an operation with its answer, and its errors by status."""
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(STATUSES.get(code, 400), []).append(code)
    errors = {str(error): error_response(error, by_status[error]) for error in sorted(by_status)}
    done = {"description": "Done.", "content": {JSON: {"schema": answer}}}
    return {
        "operationId": name,
        "tags": [tag],
        "security": [{"session": []}] if 401 in by_status else [],
        "responses": {str(status): done, **errors},
    }


def error_response(status: int, codes: list[str]) -> Json:
    """Return an error that has one of the codes."""
    examples = {code: {"value": {"object": "error", "message": code}} for code in codes}
    return {
        "description": ", ".join(f"`{code}`" for code in codes),
        "headers": HEADERS.get(status, {}),
        "content": {JSON: {"schema": reference("Error"), "examples": examples}},
    }
