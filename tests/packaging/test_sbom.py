"""The bill of what a plain install consists of."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.closure import declared, installed
from tests.support.wheel import ROOT, clean_environment, run

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The SBOM of `just sbom`, which rejects an invalid one."""
    file = tmp_path_factory.mktemp("sbom") / "bill.json"
    run(sys.executable, "-m", "tools.sbom", str(file), cwd=ROOT)
    return file.read_text(encoding="utf-8")


def test_the_components_of_the_sbom_are_the_declared_closure(
    text: str, wheel: Path, tmp_path: Path
):
    bill: dict[str, Any] = json.loads(text)
    python = clean_environment(tmp_path / "env", sys.executable, str(wheel))
    found = installed(python)
    needed = declared("graphile-worker", found, "{}.{}".format(*sys.version_info))

    own = bill["metadata"]["component"]
    others = {each["purl"] for each in bill["components"]}

    assert own["purl"] == f"pkg:pypi/graphile-worker@{found['graphile-worker'].version}"
    assert others == {
        f"pkg:pypi/{name}@{found[name].version}" for name in needed - {"graphile-worker"}
    }
    assert all(each["licenses"] for each in [own, *bill["components"]])


def test_the_sbom_names_no_machine_and_no_host(text: str):
    schema = json.loads(text)["$schema"]

    assert re.findall(r"\w+://[^\"]*", text) == [schema]
    assert not re.search(r'"(/|[A-Z]:\\)', text)
    assert str(ROOT) not in text
