# A node on processors:
#   docker build -f deploy/docker/node-cpu.Dockerfile -t shoal-node .
#   docker run --rm -v shoal-node:/home/shoal/data shoal-node TICKET
FROM python:3.11-slim
WORKDIR /app
COPY pyproject.toml constraints.txt README.md ./
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt "$(grep -iE '^torch==' constraints.txt)" \
    && pip install --no-cache-dir -c constraints.txt ".[traces]" \
    && useradd --create-home --uid 10001 shoal
USER shoal
ENV SHOAL_HOME=/home/shoal/data
VOLUME /home/shoal/data
ENTRYPOINT ["shoal", "join", "--yes"]
