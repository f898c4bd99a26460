# A node on NVIDIA GPUs; the host needs the driver and the container toolkit:
#   docker build -f deploy/docker/node-cuda.Dockerfile -t shoal-node-cuda .
#   docker run --rm --gpus all -v shoal-node:/home/shoal/data shoal-node-cuda TICKET
FROM nvidia/cuda:12.8.1-runtime-ubuntu24.04
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv gcc python3-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY pyproject.toml README.md ./
COPY src ./src
# Without the constraints file: a plain torch brings the CUDA libraries that it was built for.
RUN python3 -m venv /opt/shoal \
    && /opt/shoal/bin/pip install --no-cache-dir ".[traces]" \
    && useradd --create-home --uid 10001 shoal
USER shoal
ENV SHOAL_HOME=/home/shoal/data PATH=/opt/shoal/bin:$PATH
VOLUME /home/shoal/data
ENTRYPOINT ["shoal", "join", "--yes", "--device", "cuda"]
