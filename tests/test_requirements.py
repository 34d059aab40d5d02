"""requirements.txt pins the packages that it names first, and all that those need."""

from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from service import ROOT

DIRECT, OTHERS = [
    [
        Requirement(line.partition("#")[0])
        for line in block.splitlines()
        if line[0] != "#"
    ]
    for block in (ROOT / "requirements.txt").read_text().split("\n\n")
]


def applies(requirement, environment=None):
    return not requirement.marker or requirement.marker.evaluate(environment)


def walk(requirement, environment):
    """Yield the name of a requirement's package, and of each that this one needs."""
    yield canonicalize_name(requirement.name)
    for each in map(Requirement, requires(requirement.name) or []):
        extras = [{"extra": extra} for extra in requirement.extras or {""}]
        if any(applies(each, environment | extra) for extra in extras):
            yield from walk(each, environment)


@pytest.mark.parametrize("platform", ["Linux", "Darwin"])
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14", "3.15"])
def test_all_that_the_packages_need_is_pinned(python, platform):
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_system": platform,
        "sys_platform": platform.lower(),
    }
    needed = {name for each in DIRECT for name in walk(each, environment)}
    pinned = [each for each in DIRECT + OTHERS if applies(each, environment)]
    assert needed == {canonicalize_name(each.name) for each in pinned}
