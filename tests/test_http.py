"""The HTTP layer: exact bodies, statuses and headers, on both databases."""

import pytest
from conftest import Person, assert_error


def test_create_answers_the_profile_whole(user):
    response = user.create({"contact-email": "ada@example.com", "full-name": "Ada"})
    assert response.status_code == 201
    profile = response.json
    assert list(profile.items()) == [
        ("profileid", profile["profileid"]),
        ("object", "profile"),
        ("appid", user.appid),
        ("accountid", user.accountid),
        ("companyName", None),
        ("fullName", "Ada"),
        ("contactEmail", "ada@example.com"),
        ("displayEmail", None),
        ("displayName", None),
        ("phone", None),
        ("occupation", None),
        ("location", None),
        ("dob", None),
        ("website", None),
        ("fields", None),
        ("createdAt", profile["createdAt"]),
        ("updatedAt", profile["createdAt"]),
    ]
