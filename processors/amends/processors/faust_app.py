"""The app for Faust's own command line: `faust -A amends.processors.faust_app worker -l info`.

Settings come from the environment, as for every part. Importing this connects to nothing, so that `faust agents`,
`faust tables` and the like work without a broker.
"""

from __future__ import annotations

from amends.processors.running import faust_app_from_environment

app = faust_app_from_environment()
