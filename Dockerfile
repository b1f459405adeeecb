# The command as an image: docs/operations/docker.md says how to build, run and extend it.
ARG PYTHON=3.14

FROM python:${PYTHON}-slim-trixie AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m venv /opt/graphile-worker \
  && /opt/graphile-worker/bin/pip install --no-cache-dir ".[otel,uvloop]"

FROM python:${PYTHON}-slim-trixie
# By number, so that an orchestrator can see that it is not root.
RUN useradd --uid 10001 --no-create-home --home-dir /worker --shell /usr/sbin/nologin worker
COPY --from=build /opt/graphile-worker /opt/graphile-worker
ENV PATH=/opt/graphile-worker/bin:$PATH PYTHONDONTWRITEBYTECODE=1
# Mount ./tasks, ./crontab and ./graphile-worker.toml here.
WORKDIR /worker
USER 10001
# No HEALTHCHECK: the worker answers over HTTP where --health-port says so, and whoever runs it asks.
# No init: as process 1 the command hands signals on and buries orphans by itself.
ENTRYPOINT ["graphile-worker"]
