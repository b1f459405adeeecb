"""Run a scenario: `python -m tests.laboratory long --seed 7 --report FILE --folder FOLDER`."""

import argparse
import json
import logging
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.laboratory.run import run_scenario
from tests.laboratory.scenarios import SCENARIOS
from tests.laboratory.versions import commit_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="laboratory")
    parser.add_argument("scenario", choices=sorted(SCENARIOS))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--pg", type=int, default=18)
    parser.add_argument("--report", type=Path, help="write the outcome to this file, as JSON")
    parser.add_argument("--upgrade-from", help="commit of the workers that `upgrade` starts with")
    parser.add_argument("--folder", type=Path, help="keep logs and journals in this folder")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="laboratory-"))
    folder.mkdir(parents=True, exist_ok=True)
    scenario = SCENARIOS[given.scenario](given.seed)
    if given.upgrade_from:
        scenario = replace(scenario, upgrade_from=commit_of(given.upgrade_from))
    outcome = run_scenario(scenario, folder, given.pg)
    sys.stdout.write("\n".join(outcome.lines()) + "\n")
    if given.report:
        given.report.write_text(json.dumps(outcome.to_json(), indent=1) + "\n")
    return 1 if outcome.report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
