"""python -m graphile_worker"""

from graphile_worker.cli.main import main

main()
