# A journal served over HTTP, as a user of its own, with its store in the volume /data.
#   docker build -t penstock .
#   docker run -p 7367:7367 -v journal:/data -e PENSTOCK_SERVE_TOKENS="admin $(openssl rand -hex 16)" penstock
FROM python:3.12-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m venv /opt/penstock \
 && /opt/penstock/bin/pip install --no-cache-dir ".[server,cli]"

FROM python:3.12-slim
RUN useradd --system --uid 7367 --home-dir /data penstock \
 && install -d -o penstock -g penstock -m 0700 /data
COPY --from=build /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:$PATH PENSTOCK_URL=/data/journal.db PYTHONUNBUFFERED=1
USER penstock
VOLUME /data
EXPOSE 7367
HEALTHCHECK --interval=15s --timeout=5s --start-period=10s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7367/healthz', timeout=4)"]
# With tokens every host name is answered; --allow-host narrows that. SIGTERM lets requests under way finish.
ENTRYPOINT ["penstock"]
CMD ["serve", "--create", "--host", "0.0.0.0"]
