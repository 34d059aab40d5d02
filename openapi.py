"""The OpenAPI description of this deployment, from the schemas and settings that it runs on."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin
from marshmallow import Schema
from peewee import IntegerField

from config import Settings
from errors import STATUSES
from models import ListedModel, Profile, Session, public_columns
from validators import APPID, IDENTIFIERS, Text, listing_schema, profile_schema

ANY = ("internal-error", "database-unavailable")
SIGNED_IN = ("invalid-appid", "sign-in-required", *ANY)
BODY = ("invalid-account", "invalid-body", "body-too-large", "unsupported-media-type", *SIGNED_IN)
LISTING = ("invalid-limit", "invalid-offset", "invalid-after", "administrator-required", *SIGNED_IN)
JSON = "application/json"
MEDIA_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data", JSON)
HEADERS = {401: "WWW-Authenticate", 503: "Retry-After"}


def describe(settings: Settings, summaries: Mapping[str, str | None]) -> dict[str, Any]:
    """The description, OpenAPI 3.1, as the JSON object that it is; the summaries are by path."""
    spec = APISpec("Profiles", "1.0.0", "3.1.0", plugins=[MarshmallowPlugin()])
    spec.components.security_scheme("session", {"type": "http", "scheme": "bearer"})
    for model in (Profile, Session):
        spec.components.schema(model.__name__, object_schema(model))
    operations = {
        "/api/user/update-profile": ("patch", body_operation(settings, creating=False)),
        "/api/user/create-profile": ("post", body_operation(settings, creating=True)),
        "/api/administrator/profiles": ("get", listing_operation(settings, Profile)),
        "/api/administrator/sessions": ("get", listing_operation(settings, Session)),
        "/health": ("get", {"responses": responses(200, {}, ANY)}),
    }
    for path, (verb, operation) in operations.items():
        spec.path(path, operations={verb: {"summary": summaries[path], **operation}})
    return spec.to_dict()


def object_schema(model: ListedModel) -> dict[str, Any]:
    """The schema of the objects that rows are answered as, from the columns."""
    names = model.as_objects([("",) * len(public_columns(model))])[0]
    properties: dict[str, Any] = {}
    for name in names:
        column = model._meta.fields.get(name)
        if column is not None:
            kind = "integer" if isinstance(column, IntegerField) else "string"
            properties[name] = {"type": [kind, "null"] if column.null else kind}
    properties["object"] = {"const": model.__name__.lower()}
    properties |= {"fields": {"type": "null"}, "ended": {"type": "boolean"}}
    return closed_object({name: properties[name] for name in names})


def body_operation(settings: Settings, *, creating: bool) -> dict[str, Any]:
    """Update or create: a target in the query, the configured fields in the body."""
    schema = profile_schema(settings.user_profile_fields, settings.lengths, creating=creating)
    target, prefix = ("accountid", "acct") if creating else ("profileid", "prof")
    schema_of_target = {"type": "string", "pattern": f"^{IDENTIFIERS[prefix].pattern}$"}
    query = {"in": "query", "name": target, "required": True, "schema": schema_of_target}
    content = {media_type: {"schema": schema} for media_type in MEDIA_TYPES}
    codes = (f"invalid-{target}", *field_codes(schema), *BODY)
    described = responses(201 if creating else 200, reference("Profile"), codes)
    described["404"] = error_response(404, [f"invalid-{target}"])
    return {
        "security": [{"session": []}],
        "parameters": [query, appid_header(settings)],
        "requestBody": {"required": bool(settings.user_profile_fields), "content": content},
        "responses": described,
    }


def listing_operation(settings: Settings, model: ListedModel) -> dict[str, Any]:
    """A listing: paging in the query, rows or null as the answer."""
    rows = {"type": ["array", "null"], "items": reference(model.__name__)}
    described = responses(200, rows, LISTING)
    described["200"]["headers"] = {"Link": header('The next page, `<…>; rel="next"`, if any.')}
    return {
        "security": [{"session": []}],
        "parameters": [
            {"in": "query", "schema": listing_schema(settings.page_size)},
            appid_header(settings),
        ],
        "responses": described,
    }


def field_codes(schema: Schema) -> Iterator[str]:
    """The codes that a body's fields can fail with, in configured order."""
    for field in schema.fields.values():
        if isinstance(field, Text):
            codes: list[Any] = [field.error_messages["required"]]
            codes += [getattr(validator, "error", codes[0]) for validator in field.validators]
            yield from dict.fromkeys(codes)


def responses(status: int, schema: dict[str, Any], codes: Iterable[str]) -> dict[str, Any]:
    """The answer of an operation, and its errors by status."""
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(STATUSES.get(code, 400), []).append(code)
    errors = {str(error): error_response(error, by_status[error]) for error in sorted(by_status)}
    answered = {"description": "Done.", "content": {JSON: {"schema": schema}}}
    return {str(status): answered, **errors}


def error_response(status: int, codes: list[str]) -> dict[str, Any]:
    """An error whose message is one of the codes, with the header of its status."""
    schema = closed_object({"object": {"const": "error"}, "message": {"enum": codes}})
    described = {
        "description": ", ".join(f"`{code}`" for code in codes),
        "content": {JSON: {"schema": schema}},
    }
    if status in HEADERS:
        described["headers"] = {HEADERS[status]: header("", required=True)}
    return described


def closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    """An object of all these properties and no others."""
    required = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **required}


def header(description: str, *, required: bool = False) -> dict[str, Any]:
    return {"description": description, "required": required, "schema": {"type": "string"}}


def appid_header(settings: Settings) -> dict[str, Any]:
    schema = {"type": "string", "pattern": f"^{APPID.pattern}$", "default": settings.appid}
    return {"in": "header", "name": "X-Appid", "required": False, "schema": schema}


def reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
