"""The tiny model that is asked in a service, over HTTP and by its file."""

import pytest


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    from pod.serving import tiny  # which wants a package that some tests here do without
    from pod.serving.model_file import Gguf

    return Gguf(tiny.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture(scope="module")
def model(file):
    from served import tiny_model

    return tiny_model(file)
