# docker build --target cpu -t envace . && docker run --rm -it -p 4200:4200 -p 5000:5000 envace make repro
FROM python:3.11-slim AS cpu
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap git make && rm -rf /var/lib/apt/lists/*
WORKDIR /envace
# The environment first: it changes rarely and is by far the largest layer.
COPY locks locks
COPY Makefile .
RUN make venv
COPY . .
RUN git config --global --add safe.directory /envace && touch .venv/.ready
ENV PATH=/envace/.venv/bin:$PATH DO_NOT_TRACK=true RAY_USAGE_STATS_ENABLED=0
# Ray keeps its object store in shared memory; give the container some: docker run --shm-size=2g
CMD ["make", "repro"]
