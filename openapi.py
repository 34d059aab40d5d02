"""The OpenAPI description: openapi.json, and what the settings decide."""

import json
from pathlib import Path

from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin

from validators import CATALOGUE, example_body, profile_schema

DOCUMENT = Path(__file__).with_name("openapi.json").read_text("utf-8")


def describe(settings):
    """Return the description, OpenAPI 3.1, as a JSON object."""
    document = json.loads(DOCUMENT)
    paths = document["paths"]
    schemas = document["components"]["schemas"]
    create = paths["/api/user/create-profile"]["post"]
    update = paths["/api/user/update-profile"]["patch"]
    schemas["CreateProfile"] = describe_body(create, settings, creating=True)
    schemas["UpdateProfile"] = describe_body(update, settings, creating=False)
    for listing in ("/api/administrator/profiles", "/api/administrator/sessions"):
        limit = paths[listing]["get"]["parameters"][0]
        limit["schema"]["default"] = settings["PAGE_SIZE"]
    return document


def describe_body(operation, settings, *, creating):
    """Return the schema of an operation's body, and give the operation an example."""
    names = settings["USER_PROFILE_FIELDS"]
    lengths = settings["PROFILE_LENGTHS"]
    spec = APISpec("", "", "3.1.0", plugins=[MarshmallowPlugin()])
    schema = profile_schema(names, lengths, creating=creating)
    described = spec.components.schema("Body", schema=schema).schemas["Body"]
    example = example_body(names, lengths)
    for name in names:
        rule = CATALOGUE[name].rule
        if rule in ("email", "date"):  # the names of formats, too
            described["properties"][name]["format"] = rule
    if creating:
        described["properties"]["default"] = {"type": "boolean"}
        example["default"] = False
    operation["requestBody"]["content"]["application/json"]["example"] = example
    return described
