# One image for every part: `docker run amends processor`, `… compensator MODULE…`, `… topics create`. docs/containers.md.
#
#   docker build -t amends .                                  what you run
#   docker build -t amends-examples --target examples .       the same, with the tools and the services of the demo
#
# The base by its digest: --build-arg PYTHON=python:…@sha256:…. An index of your own: --secret id=pip.conf,src=FILE, and
# --secret id=ca.crt,src=FILE for a certificate authority it names as /run/secrets/ca.crt; neither stays in a layer.
ARG PYTHON=python:3.11.14-slim-bookworm

FROM ${PYTHON} AS build
ARG EXTRAS=processors,faust,compensators,console
WORKDIR /src
# What the wheel is built with is pinned as what it needs is.
ENV PIP_CONSTRAINT=/src/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1
COPY . .
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt \
    --mount=type=cache,target=/root/.cache/pip \
    python -m venv --without-pip /opt/amends \
    && pip wheel --quiet --no-deps --wheel-dir /wheels . \
    && pip --python /opt/amends/bin/python install --quiet "$(ls /wheels/amends-*.whl)[${EXTRAS}]"

FROM ${PYTHON} AS amends
LABEL org.opencontainers.image.title="amends" \
      org.opencontainers.image.description="Undo for agent fleets" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 amends \
    && useradd --uid 10001 --gid amends --home-dir /app --no-create-home --shell /usr/sbin/nologin amends \
    && mkdir /app
COPY --from=build /opt/amends /opt/amends
COPY --from=build /src/constraints.txt /opt/amends/constraints.txt
# A derived image adds its own: `USER root`, `RUN pip install -c /opt/amends/constraints.txt stripe`, `COPY shop /app/shop`, `USER amends`.
ENV PATH=/opt/amends/bin:$PATH \
    PIP_PYTHON=/opt/amends/bin/python \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /app
# By number, so that Kubernetes can see that it is not root.
USER 10001:10001
# No shell between: the part is process 1, and SIGTERM reaches it.
ENTRYPOINT ["amends"]
CMD ["--help"]

FROM amends AS examples
USER root
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt \
    --mount=type=cache,target=/root/.cache/pip \
    pip install --quiet --disable-pip-version-check -c /opt/amends/constraints.txt localstripe stripe psutil
USER 10001:10001

# The last is what is built where no target is named.
FROM amends
