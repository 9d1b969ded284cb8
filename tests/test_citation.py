"""CITATION.cff has the fields that its schema asks for, and says what pyproject.toml and the changelog say."""

import re

import yaml

from pod.files import ROOT

CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
REQUIRED = {"cff-version", "message", "title", "authors"}  # of the Citation File Format 1.2.0
OF_A_REFERENCE = {"type", "title", "authors"}
OF_A_PERSON = {"family-names", "given-names"}


def test_the_required_fields_are_there():
    assert REQUIRED <= set(CITATION) and CITATION["cff-version"] == "1.2.0"
    assert all(author.get("name") or OF_A_PERSON <= set(author) for author in CITATION["authors"])


def test_the_paper_that_it_rebuilds_is_cited():
    (paper,) = CITATION["references"]
    assert set(paper) >= OF_A_REFERENCE and len(paper["authors"]) == 6
    assert all(set(author) == OF_A_PERSON for author in paper["authors"])
    assert paper["url"] in (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_names_this_version_and_licence():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for field in ("version", "license"):
        assert re.search(rf'^{field} = "(.+)"$', project, re.MULTILINE)[1] == CITATION[field]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+),", changes, re.MULTILINE)[1] == CITATION["version"]
