"""python -m graphile_worker"""

from graphile_worker._cli.main import main

main()
