"""The OpenAPI description: openapi.json with the settings in it, and its page."""

import json
from pathlib import Path

from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin
from flask import Blueprint, redirect
from flask_swagger_ui import get_swaggerui_blueprint

from config import configured_schema, example_body, settings

DOCUMENT = Path(__file__).with_name("openapi.json").read_text("utf-8")

description = Blueprint("description", __name__)
docs = get_swaggerui_blueprint(
    ".",  # relative to the page, as is the next: a prefix may precede it
    "../openapi.json",
    # No box for another address, no validator on the network, no repeated Host header.
    {"layout": "BaseLayout", "validatorUrl": None, "oauth2RedirectUrl": None},
)
docs.url_prefix = "/docs"  # where it is


@description.get("/openapi.json")
def description_endpoint():
    values = {
        "$PAGE_SIZE": settings()["PAGE_SIZE"],
        "$EXAMPLE": example_body(),
        "$CREATE_PROFILE": body_schema(creating=True),
        "$UPDATE_PROFILE": body_schema(creating=False),
    }
    text = DOCUMENT
    for name, value in values.items():
        text = text.replace(f'"{name}"', json.dumps(value))
    return json.loads(text)


@description.get("/")
@description.get("/docs")
def front_endpoint():
    return redirect("docs/")  # a relative address, without the Host header


def body_schema(*, creating):
    """Return the JSON schema of the body that creates or updates a profile."""
    schema = configured_schema(creating=creating)
    spec = APISpec("", "", "3.1.0", plugins=[MarshmallowPlugin()])
    return spec.components.schema("Body", schema=schema).schemas["Body"]
