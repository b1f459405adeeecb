# The command as an image: docs/operations/docker.md says how to build, run and extend it.
# A release names its base by digest: docs/contributing/releasing.md says how, and a test asks for it.
ARG BASE=python:3.14-slim-trixie

FROM ${BASE} AS build
WORKDIR /build
COPY requirements-build.txt requirements-image.txt ./
RUN python -m venv /opt/build \
  && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements-build.txt \
  && python -m venv /opt/graphile-worker \
  && /opt/graphile-worker/bin/pip install --no-cache-dir --require-hashes -r requirements-image.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
# All that it needs is installed by its hash: pip must not fetch anything more.
RUN /opt/build/bin/python -m hatchling build -t wheel -d dist \
  && /opt/graphile-worker/bin/pip install --no-cache-dir --no-index --no-deps dist/*.whl

FROM ${BASE}
# By number, so that an orchestrator can see that it is not root.
RUN useradd --uid 10001 --no-create-home --home-dir /worker --shell /usr/sbin/nologin worker
COPY --from=build /opt/graphile-worker /opt/graphile-worker
ENV PATH=/opt/graphile-worker/bin:$PATH PYTHONDONTWRITEBYTECODE=1
# An orchestrator asks from outside of the container.
ENV GRAPHILE_WORKER_HEALTH_HOST=::
# Mount ./tasks, ./crontab and ./graphile-worker.toml here.
WORKDIR /worker
USER 10001
# No HEALTHCHECK: the worker answers over HTTP where --health-port says so, and whoever runs it asks.
# No init: as process 1 the command hands signals on and buries orphans by itself.
ENTRYPOINT ["graphile-worker"]
