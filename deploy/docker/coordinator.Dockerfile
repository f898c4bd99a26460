# A coordinator: logs, rounds, the API and the dashboard. Build from the repository's root:
#   docker build -f deploy/docker/coordinator.Dockerfile -t shoal-coordinator .
FROM python:3.11-slim
WORKDIR /app
COPY pyproject.toml constraints.txt README.md ./
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt "$(grep -iE '^torch==' constraints.txt)" \
    && pip install --no-cache-dir -c constraints.txt ".[vision,parquet,postgres,traces]" \
    && useradd --create-home --uid 10001 shoal
USER shoal
ENV SHOAL_HOME=/home/shoal/data
VOLUME /home/shoal/data
# The API and dashboard, nodes' control channels, blobs.
EXPOSE 8470 8471 8472
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8470/healthz', timeout=4)"]
ENTRYPOINT ["shoal", "serve", "--host", "0.0.0.0", "--api-host", "0.0.0.0", "--api-plain"]
