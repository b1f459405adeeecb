"""The recipe of the guide: Node chooses the same lane as `lane(…, by=…)`."""

import re
import subprocess

import pytest

from graphile_worker import lane
from tests.support.pages import ROOT
from tests.support.tools import NODE

BLOCK = re.compile(r"```typescript\n(const digest = .+?)await addJob", re.DOTALL)


@pytest.mark.single_version
def test_node_computes_the_lane_of_a_value_as_python_does():
    page = (ROOT / "docs/guides/named-queues.md").read_text(encoding="utf-8")
    [recipe] = BLOCK.findall(page)
    orders = ["7", "order-7", "ä", *map(str, range(50))]

    # The page computes the lane of order 7.
    body = recipe.replace('"7"', "order")
    program = (
        'const crypto = require("crypto");'
        f"for (const order of process.argv.slice(1)) {{ {body} console.log(queueName); }}"
    )
    done = subprocess.run(
        [NODE, "-e", program, *orders], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines() == [lane("tenant", 42, of=4, by=each) for each in orders]
